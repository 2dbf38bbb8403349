import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Literal

import pytest

from gateway.spool import Spool
from tests.postgres.server import PostgresServer
from tests.spool.postgres_tables import copy_tables, create_tables

Crash = Callable[[], Awaitable[Spool]]
OpenSpool = Callable[[], Awaitable[Spool]]
"""Opens the spool of a test. It is closed after the test."""


@pytest.fixture(params=["files", "postgresql"])
def engine(request: pytest.FixtureRequest) -> Literal["files", "postgresql"]:
    """Run the test with each engine."""
    found: Literal["files", "postgresql"] = request.param
    return found


@pytest.fixture
def tables_url(database_url: str) -> str:
    """Return the URL of a database with the tables of the spool."""
    create_tables(database_url)
    return database_url


@pytest.fixture
def url(engine: str, request: pytest.FixtureRequest) -> str | None:
    """Return the database of the engine; None for files. The server is started only if it is needed."""
    return request.getfixturevalue("tables_url") if engine == "postgresql" else None


@pytest.fixture
async def open_spool(url: str | None, tmp_path: Path) -> AsyncIterator[OpenSpool]:
    async with AsyncExitStack() as stack:

        async def opened() -> Spool:
            opening = Spool.open(tmp_path) if url is None else Spool.open_database(url, tmp_path)
            return await stack.enter_async_context(await opening)

        yield opened


@pytest.fixture
async def spool(open_spool: OpenSpool) -> Spool:
    return await open_spool()


@pytest.fixture
async def file_spool(tmp_path: Path) -> AsyncIterator[Spool]:
    async with await Spool.open(tmp_path) as opened:
        yield opened


@pytest.fixture
def databases(request: pytest.FixtureRequest) -> Iterator[Callable[[], str]]:
    """Yield a function that creates further databases with empty tables."""
    urls: list[str] = []

    def new() -> str:
        server: PostgresServer = request.getfixturevalue("postgres")
        urls.append(server.new_database())
        create_tables(urls[-1])
        return urls[-1]

    yield new
    for url in urls:
        request.getfixturevalue("postgres").drop_database(url)


@pytest.fixture
async def crash(spool: Spool, url: str | None, databases: Callable[[], str], tmp_path: Path) -> AsyncIterator[Crash]:
    """Open what is stored at this moment, as a start after kill -9 would find it."""
    copies: list[Spool] = []

    async def crashed() -> Spool:
        directory = tmp_path / f"crash-{len(copies)}"
        if url is None:
            copies.append(await Spool.open(copied(spool.path, directory)))
        else:
            copy = databases()
            copy_tables(url, copy)
            copies.append(await Spool.open_database(copy, directory))
        return copies[-1]

    yield crashed
    for copy in copies:
        await copy.close()


def copied(path: Path, directory: Path) -> Path:
    directory.mkdir()
    for file in path.parent.glob(f"{path.name}*"):
        if file.is_file():
            shutil.copy(file, directory)
    return directory
