from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from config import SessionSettings
from gateway.contract import Address, PeerKind
from gateway.sessions import SessionManager, undo_last_turn

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


@pytest.fixture
async def open_manager(directory: Path) -> AsyncIterator[OpenManager]:
    """Open managers on the same folder without closing the one before, as after a kill. All are closed at the end."""
    opened: list[SessionManager] = []
    clock = Clock()

    async def open_one() -> SessionManager:
        manager = await SessionManager.open(directory, SessionSettings(), clock)
        opened.append(manager)
        await manager.recover()
        return manager

    yield open_one
    for manager in opened:
        await manager.close()


@pytest.fixture
async def manager(open_manager: OpenManager) -> SessionManager:
    return await open_manager()
