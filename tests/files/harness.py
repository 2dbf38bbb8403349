"""Set-up shared by the tests of files."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from gateway.files.store import FileStore


async def chunks(*parts: bytes) -> AsyncGenerator[bytes, None]:
    for part in parts:
        await asyncio.sleep(0)
        yield part


async def opened(tmp_path: Path, budget: int = 10_000) -> FileStore:
    store = FileStore(tmp_path / "files", budget)
    await store.open()
    return store


def left(tmp_path: Path) -> list[str]:
    return sorted(
        str(path.relative_to(tmp_path / "files")) for path in (tmp_path / "files").rglob("*") if path.is_file()
    )


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def transcription_server(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/audio/transcriptions", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}/v1"
    finally:
        await runner.cleanup()
