"""A real server on a free port, and clients for it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from config import HttpSettings, Secret
from gateway.contract import Caller, Route, TokenScope
from gateway.http.auth import Auth, Clock
from gateway.http.forwarding import Forwarder
from gateway.http.responses import HttpLimits
from gateway.http.routes import Health, SignIns, core_routes
from gateway.http.server import HttpServer

TOKEN = "the-token-of-these-tests"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
TIMEOUT = 90.0

PROGRAMS = {
    f"gh_{scope}_secret": Caller(name=f"the {scope} program", token=f"id-of-{scope}", scopes=frozenset({scope}))
    for scope in TokenScope
}
"""A program for each scope, by its API token."""
EXPIRED = "gh_expired_secret"


def find_program(token: str) -> Caller | None:
    return Caller() if token == EXPIRED else PROGRAMS.get(token)


def program(scope: TokenScope) -> dict[str, str]:
    """Return the credential of the program with this scope."""
    return {"Authorization": f"Bearer gh_{scope}_secret"}


@dataclass
class Time:
    """Both clocks of the server, set by the test."""

    now: float = 1_700_000_000.0

    def clock(self) -> Clock:
        return Clock(wall=lambda: self.now, monotonic=lambda: self.now)


@dataclass(frozen=True, kw_only=True)
class Running:
    server: HttpServer
    auth: Auth
    client: aiohttp.ClientSession
    control: aiohttp.ClientSession
    control_path: Path
    settings: HttpSettings = field(default_factory=HttpSettings)

    @property
    def own(self) -> dict[str, str]:
        """The headers that our own page sends with its requests."""
        return {"Origin": self.server.url}

    def cookie(self, auth: Auth | None = None) -> dict[str, str]:
        maker = auth or self.auth
        value = maker.redeem(maker.mint_code())
        return {"Cookie": f"gatehouse_{self.server.port}={value}"}

    async def status(self, method: str, path: str, **request: Any) -> int:  # noqa: ANN401 - As aiohttp takes them.
        async with self.client.request(method, path, **request) as response:
            return response.status

    async def error(self, method: str, path: str, **request: Any) -> str:  # noqa: ANN401 - As aiohttp takes them.
        async with self.client.request(method, path, **request) as response:
            assert response.status >= 400
            found = await response.json()
            assert set(found) == {"error"}
            return str(found["error"])

    async def raw(self, data: bytes) -> bytes:
        """Send bytes, and read until the server closes the connection."""
        async with self.connect() as (reader, writer):
            with contextlib.suppress(ConnectionError):
                writer.write(data)
                await writer.drain()
            return await read_all(reader)

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        async with asyncio.timeout(TIMEOUT):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def head(self, request: str, headers: Mapping[str, str] | None = None) -> bytes:
        """Return the header of a request, for `raw`."""
        lines = {"Host": f"127.0.0.1:{self.server.port}", **(headers or {})}
        return "\r\n".join([f"{request} HTTP/1.1", *(f"{name}: {lines[name]}" for name in lines), "", ""]).encode()

    async def upgrade(self, path: str, headers: Mapping[str, str] | None = None) -> int:
        """Request a WebSocket, and return the status of the response."""
        asking = {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Version": "13",
            **(headers or {}),
        }
        async with self.connect() as (reader, writer), asyncio.timeout(TIMEOUT):
            writer.write(self.head(f"GET {path}", asking))
            return int((await reader.readline()).split()[1])


async def read_all(reader: asyncio.StreamReader) -> bytes:
    """Read until the server closes or resets the connection."""
    data = b""
    async with asyncio.timeout(TIMEOUT):
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(65536):
                data += chunk
    return data


@contextlib.asynccontextmanager
async def serving(
    data_dir: Path,
    routes: Sequence[Route] = (),
    *,
    limits: HttpLimits | None = None,
    time: Time | None = None,
    health: Callable[[], Health] = lambda: Health(ready=True),
    find_token: Callable[[str], Caller | None] = find_program,
    knows_token: Callable[[str], bool] = lambda _: True,
    rate_limit: Callable[[], int] = lambda: 0,
    is_ready: Callable[[], bool] = lambda: True,
    forwarder: Forwarder | None = None,
    sign_ins: SignIns | None = None,
    **settings: Any,  # noqa: ANN401 - As the config gives them.
) -> AsyncIterator[Running]:
    """Serve the core's routes and `routes`."""
    auth = Auth(Secret(TOKEN), time.clock() if time else None)
    chosen = HttpSettings(**{"port": 0, "token": Secret(TOKEN), **settings})
    control_path = data_dir / "control.sock"
    core = core_routes(auth=auth, health=health, url=lambda: server.url, sign_ins=sign_ins)
    server = HttpServer(
        chosen,
        auth=auth,
        routes=[*core, *routes],
        control_path=control_path,
        find_token=find_token,
        knows_token=knows_token,
        rate_limit=rate_limit,
        is_ready=is_ready,
        limits=limits,
        forwarder=forwarder,
    )
    async with (
        server,
        aiohttp.ClientSession(server.url, cookie_jar=aiohttp.DummyCookieJar()) as client,
        aiohttp.ClientSession("http://any", connector=aiohttp.UnixConnector(str(control_path))) as control,
    ):
        yield Running(
            server=server, auth=auth, client=client, control=control, control_path=control_path, settings=chosen
        )
