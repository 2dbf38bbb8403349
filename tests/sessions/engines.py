"""Sessions in each storage engine, for tests that hold for all of them."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path

from config import SessionSettings, Settings
from gateway.sessions import SessionManager
from gateway.storage import open_storage
from tests.postgres.server import PostgresServer

ENGINES = ("files", "sqlite", "postgresql")


def storage_url(engine: str, folder: Path, database_url: Callable[[], str]) -> str:
    """Return the URL of an empty storage. `database_url` creates a database in PostgreSQL."""
    match engine:
        case "sqlite":
            return f"sqlite://{folder}/gatehouse.db"
        case "postgresql":
            return database_url()
        case _:
            return "files:"


def release_lease(server: PostgresServer, url: str) -> None:
    """Let the next gateway take a database at once, although the one before has not ended."""
    if server.execute("SELECT to_regclass('writer')", database=url) != [(None,)]:
        server.execute("UPDATE writer SET boot = '', holder = ''", database=url)


@asynccontextmanager
async def open_sessions(
    url: str, folder: Path, settings: SessionSettings, clock: Callable[[], datetime]
) -> AsyncIterator[SessionManager]:
    """Open the sessions of a storage. Files have no journal here, which is how they are used without a daemon."""
    async with AsyncExitStack() as stack:
        if url == "files:":
            manager = await SessionManager.open(folder / "sessions", settings, clock)
        else:
            given = Settings.model_validate({"gateway": {"data_dir": folder}, "storage": {"url": url}})
            spool, storage = await stack.enter_async_context(open_storage(given))
            manager = await SessionManager.open(storage, settings, clock, journal=spool)
        stack.push_async_callback(manager.close)
        await manager.recover()
        yield manager
