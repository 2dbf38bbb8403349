"""Real API tokens on a real server: what a revocation and an expiry end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from structlog.testing import capture_logs

from config import Settings
from gateway.access.tokens import NewToken, TokenBook, TokenIssuer
from gateway.contract import TokenScope
from gateway.spool import Spool
from tests.http.examples import EXAMPLES
from tests.http.harness import BEARER, TIMEOUT, Running, read_all, serving
from tests.polling import until


@dataclass
class Gate:
    running: Running
    issuer: TokenIssuer
    now: datetime

    async def credential(self, *, expires_in: float | None = None) -> tuple[str, dict[str, str]]:
        new = NewToken(name="ci", scopes=frozenset({TokenScope.READ}), expires_in=expires_in)
        token, secret = await self.issuer.create(new)
        return token.id, {"Authorization": f"Bearer {secret}"}


@asynccontextmanager
async def gate(folder: Path) -> AsyncIterator[Gate]:
    """Serve the examples, with an issuer that runs as in the daemon."""
    clock = [datetime(2026, 3, 1, tzinfo=UTC)]
    book = TokenBook(lambda: opened.now)
    async with (
        asyncio.timeout(TIMEOUT),
        await Spool.open(folder) as spool,
        serving(folder, EXAMPLES, find_token=book.identify) as running,
        asyncio.TaskGroup() as tasks,
    ):
        issuer = TokenIssuer(book, spool, settings=Settings, now=lambda: opened.now, on_ended=running.server.drop_token)
        opened = Gate(running, issuer, clock[0])
        ending = tasks.create_task(issuer.run())
        yield opened
        ending.cancel()


@asynccontextmanager
async def stream(running: Running, headers: dict[str, str]) -> AsyncIterator[asyncio.StreamReader]:
    async with running.connect() as (reader, writer):
        writer.write(running.head("GET /api/stream", headers))
        await reader.readuntil(b"first")
        yield reader


async def test_a_revocation_cuts_the_open_streams_of_the_token_only(tmp_path: Path) -> None:
    async with gate(tmp_path) as opened:
        running = opened.running
        id_, headers = await opened.credential()
        _, other = await opened.credential()
        async with (
            stream(running, headers) as first,
            stream(running, headers) as second,
            stream(running, other) as kept,
            stream(running, BEARER) as owner,
        ):
            await opened.issuer.revoke(id_)
            await read_all(first)
            await read_all(second)
            assert await running.status("GET", "/api/example", headers=headers) == 401
            assert await running.status("GET", "/api/example", headers=other) == 200
            assert not kept.at_eof()
            assert not owner.at_eof()


async def test_an_expiry_cuts_open_streams(tmp_path: Path) -> None:
    async with gate(tmp_path) as opened:
        _, headers = await opened.credential(expires_in=60.0)
        async with stream(opened.running, headers) as reader:
            opened.now += timedelta(seconds=60)
            await read_all(reader)
        assert await opened.running.status("GET", "/api/example", headers=headers) == 401


async def test_secrets_are_in_no_log_of_a_refused_or_failed_request(tmp_path: Path) -> None:
    async with gate(tmp_path) as opened:
        id_, headers = await opened.credential()
        secret = headers["Authorization"].split("_", 2)[2]
        with capture_logs() as logs:
            for path in ("/api/crash", "/api/refuse", "/example", "/api/nowhere", f"/api/nowhere?token={secret}"):
                async with opened.running.client.get(path, headers=headers) as response:
                    assert secret not in await response.text()
            await opened.issuer.revoke(id_)
            assert await opened.running.status("GET", "/api/example", headers=headers) == 401
        assert secret not in str(logs)


async def test_the_api_waits_until_the_work_of_the_last_run_is_recovered(tmp_path: Path) -> None:
    ready: list[bool] = []
    async with serving(tmp_path, EXAMPLES, is_ready=lambda: bool(ready)) as running:
        async with running.client.get("/api/example", headers=BEARER) as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "1")
            assert (await response.json())["detail"] == "The gateway is starting. Try again in a moment."
        assert await running.status("GET", "/api/example") == 401
        assert await running.status("GET", "/example", headers=BEARER) == 200
        ready.append(True)
        assert await running.status("GET", "/api/example", headers=BEARER) == 200


async def test_a_stream_waits_until_the_gateway_has_started(tmp_path: Path) -> None:
    """A browser's EventSource gives up for good after an error."""
    asked: list[bool] = []
    ready: list[bool] = []

    def is_ready() -> bool:
        asked.append(True)
        return bool(ready)

    async with serving(tmp_path, EXAMPLES, is_ready=is_ready) as running:
        opening = asyncio.create_task(running.client.get("/api/stream", headers=BEARER))
        await until(lambda: len(asked) > 1)
        ready.append(True)
        async with await opening as response:
            assert response.status == 200
