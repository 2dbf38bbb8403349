"""Opens the storage that `storage.url` names: the spool and the sessions, in files or in a database."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from time import monotonic

import structlog

from config import Settings, StorageEngine, StorageSettings
from config.files import make_private_directory
from gateway.aio import ShutdownRequest, ShutdownRequested, backoff_delays, in_daemon_thread
from gateway.data_dir import DataDirLock, unusable
from gateway.database.lease import Lease
from gateway.database.migrate import ensure_current
from gateway.database.postgres import ReconnectingPostgres, connection_options, describe
from gateway.database.sqlite import create_file
from gateway.sessions.storage.database import DatabaseStorage, ReaderConnection
from gateway.sessions.storage.disk import Disk
from gateway.sessions.storage.files import FileStorage
from gateway.sessions.storage.interface import SessionStorage
from gateway.sessions.storage.reader import open_reader
from gateway.sessions.storage.row_operations import SaveRepos
from gateway.sessions.storage.row_search import PostgresSearch, SqliteSearch
from gateway.spool import Spool, SpoolUnavailable
from gateway.storage_copy.contents import UNFINISHED_COPY
from gateway.storage_copy.open import require_complete_copy

log: structlog.stdlib.BoundLogger = structlog.get_logger()

START_TIMEOUT = 30.0
"""Seconds for which a gateway waits for a database that is starting too."""


@asynccontextmanager
async def open_storage(
    settings: Settings,
    *,
    max_wait: float = 0.0,
    shutdown: ShutdownRequest | None = None,
    lease: Lease | None = None,
) -> AsyncIterator[tuple[Spool, SessionStorage]]:
    """Open the spool and the storage of the sessions, and migrate the database. The caller holds the data directory.

    Closes the spool at the end; the `SessionManager` closes the storage. Raises `CannotStart` if they cannot be used,
    and `SpoolUnavailable` if the database cannot be reached within `max_wait` seconds. A request for `shutdown` ends
    the wait for PostgreSQL with `ShutdownRequested`. `lease` is that of a node of a cluster.
    """
    async with AsyncExitStack() as stack:
        directory, storage = settings.gateway.data_dir, settings.storage
        match storage.engine:
            case StorageEngine.FILES:
                require_complete_copy(storage, directory, {})
                spool = await stack.enter_async_context(await Spool.open(directory))
                yield spool, FileStorage(directory / "sessions")
                return
            case StorageEngine.SQLITE:
                path = storage.path
                if path.parent.resolve() != directory.resolve():
                    await asyncio.to_thread(_make_folder, path.parent)
                    stack.enter_context(DataDirLock(path.parent))
                await asyncio.to_thread(create_file, path)
                await asyncio.to_thread(ensure_current, storage)
                spool = await stack.enter_async_context(await Spool.open_sqlite(path))
            case _:
                opening = _open_postgres(storage, directory, max_wait, lease)
                try:
                    opened = await (shutdown or ShutdownRequest()).interrupts(opening)
                except ShutdownRequested:
                    log.info("start_cancelled", database=describe(storage.url))
                    raise
                spool = await stack.enter_async_context(opened)
        require_complete_copy(storage, directory, await spool.facts(UNFINISHED_COPY))
        await spool.commit(SaveRepos(repos=settings.repos))

        def open_tracked() -> ReaderConnection:
            reader = open_reader(storage)
            if lease is not None and isinstance(reader, ReconnectingPostgres):
                spool.readers.add(reader)
            return reader

        sessions = directory / "sessions"
        await asyncio.to_thread(_make_folder, sessions)
        yield (
            spool,
            DatabaseStorage(
                open_tracked,
                sessions,
                row_search=SqliteSearch if storage.engine is StorageEngine.SQLITE else PostgresSearch,
                mirror=Disk(sessions) if storage.mirror else None,
            ),
        )


async def _open_postgres(storage: StorageSettings, data_dir: Path, max_wait: float, lease: Lease | None) -> Spool:
    await _wait_for_server(storage, max_wait)
    options = connection_options(storage)
    if lease is not None:  # A connection that takes longer than the lease comes too late.
        options["connect_timeout"] = min(storage.connect_timeout, lease.seconds)
    return await Spool.open_database(storage.url, data_dir, lease=lease, **options)


async def _wait_for_server(storage: StorageSettings, max_wait: float) -> None:
    """Migrate the database as soon as its server can be reached."""
    deadline = monotonic() + max_wait
    write_log = log.info  # Once, not for each attempt.
    for delay in backoff_delays(first=0.1, cap=2.0):
        try:
            # A shutdown does not wait for a server that hangs. It rolls back a migration whose connection is lost.
            await in_daemon_thread("migration", partial(ensure_current, storage))
        except OSError as error:
            if monotonic() + delay > deadline:
                # `strerror` is a sentence without its full stop.
                advice = f"Is the server of {describe(storage.url)} running?"
                raise SpoolUnavailable(f"{error.strerror}. {advice}") from error
            write_log("database_awaited", reason=error.strerror)
            write_log = log.debug
        else:
            return
        await asyncio.sleep(delay)


def database_name(storage: StorageSettings) -> str:
    """Return what people call the database, without a password; nothing for files."""
    match storage.engine:
        case StorageEngine.FILES:
            return ""
        case StorageEngine.SQLITE:
            return str(storage.path)
        case _:
            return describe(storage.url)


def _make_folder(folder: Path) -> None:
    try:
        make_private_directory(folder)
    except OSError as error:
        raise unusable(folder, error) from error
