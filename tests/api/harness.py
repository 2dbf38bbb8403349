"""Set-up shared by tests of the HTTP API."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from aiohttp import ClientResponse, ClientSession, ClientTimeout

from config import Settings
from gateway.access.tokens import NewToken
from gateway.build import open_daemon
from gateway.contract import TokenScope
from gateway.daemon import Daemon
from tests.daemon.harness import DAEMON_TIMEOUT
from tests.polling import until

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Api:
    """A program that uses a running daemon over HTTP, with one token."""

    daemon: Daemon
    http: ClientSession
    token: str

    async def call(self, method: str, path: str, body: Json | None = None, **headers: str) -> tuple[int, Json]:
        """Return the status and the JSON of a response."""
        response = await self.request(method, path, body, **headers)
        return response.status, await response.json(content_type=None)

    async def request(self, method: str, path: str, body: Json | None = None, **headers: str) -> ClientResponse:
        """Headers are given with underscores for hyphens."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.request(
            method, f"{self.daemon.server.url}{path}", json=body, headers={**self.authorization, **named}
        )

    @property
    def authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    async def start(self, **body: object) -> Json:
        status, session = await self.call("POST", "/api/sessions", dict(body))
        assert status == 201, session
        return session

    async def prompt(self, session: Json, text: str, **headers: str) -> Json:
        status, message = await self.call("POST", f"/api/sessions/{session['id']}/prompt", {"text": text}, **headers)
        assert status == 202, message
        return message

    async def upload(self, name: str, content: bytes) -> Json:
        url = f"{self.daemon.server.url}/api/files?name={name}"
        headers = {**self.authorization, "Content-Type": "application/octet-stream"}
        async with self.http.post(url, data=content, headers=headers) as response:
            stored: Json = await response.json(content_type=None)
            assert response.status == 200, stored
            return stored

    async def read(self, session: Json) -> Json:
        status, detail = await self.call("GET", f"/api/sessions/{session['id']}")
        assert status == 200, detail
        return detail

    async def texts(self, session: Json) -> list[tuple[str, str]]:
        """Return the role and the text of each text message."""
        messages = (await self.read(session))["messages"]
        return [(each["role"], each["content"]["text"]) for each in messages if each["content"]["type"] == "text"]

    async def answered(self, session: Json, turns: int = 1) -> list[tuple[str, str]]:
        """Wait until so many turns have ended, and return the texts."""
        await until(lambda: self.has_ended(session, turns))
        return await self.texts(session)

    async def has_ended(self, session: Json, turns: int) -> bool:
        found = await self.daemon.sessions.directory.find(session["id"])
        return found is not None and found.turns >= turns and not self.daemon.lanes.is_busy(found.key)

    async def token_for(self, *scopes: TokenScope, **more: object) -> "Api":
        """Return the same daemon with another token."""
        wanted = msgspec.convert({"name": "a program", "scopes": list(scopes), **more}, NewToken)
        _, secret = await self.daemon.tokens.create(wanted)
        return Api(daemon=self.daemon, http=self.http, token=secret)


@asynccontextmanager
async def api(
    configured: Settings,
    before: Callable[[Daemon], None] = lambda _daemon: None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> AsyncIterator[Api]:
    """Run a daemon that listens on a port, and yield a program with the owner's token."""
    async with (
        asyncio.timeout(DAEMON_TIMEOUT),
        open_daemon(configured, now=now) as daemon,
        ClientSession(timeout=ClientTimeout(total=DAEMON_TIMEOUT)) as http,
        asyncio.TaskGroup() as tasks,
    ):
        before(daemon)
        ready = asyncio.Event()
        tasks.create_task(daemon.run(ready.set), name="daemon")
        await ready.wait()
        token = await asyncio.to_thread((configured.gateway.data_dir / "http.token").read_text)
        yield Api(daemon=daemon, http=http, token=token.strip())
        daemon.stop()


@dataclass(frozen=True, kw_only=True)
class Event:
    name: str
    id: str
    data: Json


async def read_events(response: ClientResponse) -> AsyncGenerator[Event, None]:
    """Yield the events of a stream, without comments."""
    buffer = b""
    async for block in response.content.iter_any():
        *finished, buffer = (buffer + block).split(b"\n\n")
        for event in finished:
            lines = (line.partition(": ") for line in event.decode().splitlines())
            fields = {name: value for name, _, value in lines}
            if "data" in fields:
                yield Event(name=fields["event"], id=fields.get("id", ""), data=json.loads(fields["data"]))
