from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from inspect import signature
from pathlib import Path

import pytest

from config import SessionSettings
from gateway.contract import Address, PeerKind
from gateway.sessions import SessionManager, undo_last_turn
from tests.sessions.engines import ENGINES, open_sessions, release_lease, storage_url

SCOPE = "agent:main:web:direct:ann"
ANN = Address(channel="web", kind=PeerKind.DIRECT, peer="ann")

OpenManager = Callable[[], Awaitable[SessionManager]]


class Clock:
    """A clock that advances one second per call."""

    def __init__(self) -> None:
        self.now = datetime(2026, 3, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


async def undo(manager: SessionManager, key: str) -> str | None:
    """Undo the newest turn of a session, and return its id."""
    entry = undo_last_turn((await manager.load(key)).entries)
    if entry is None:
        return None
    await manager.append(key, [entry])
    return entry.undone


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "sessions"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test in every storage engine, unless it uses the files themselves."""
    if "engine" in metafunc.fixturenames:
        uses_files = "directory" in signature(metafunc.function).parameters
        uses_files |= any(mark.name == "files_only" for mark in metafunc.definition.iter_markers())
        engines = ENGINES[:1] if uses_files else ENGINES
        metafunc.parametrize("engine", engines)


@pytest.fixture
async def open_manager(engine: str, directory: Path, request: pytest.FixtureRequest) -> AsyncIterator[OpenManager]:
    """Open managers on the same sessions without closing the one before, as after a kill. All are closed at the end.

    A database has one writer at a time, so there the one before can only be read from then on.
    """
    clock = Clock()
    url = storage_url(engine, directory.parent, lambda: request.getfixturevalue("database_url"))
    async with AsyncExitStack() as opened:

        async def open_one() -> SessionManager:
            if engine == "postgresql":
                release_lease(request.getfixturevalue("postgres"), url)
            return await opened.enter_async_context(open_sessions(url, directory.parent, SessionSettings(), clock))

        yield open_one


@pytest.fixture
async def manager(open_manager: OpenManager) -> SessionManager:
    return await open_manager()
