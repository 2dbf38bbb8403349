"""Sweeping: going through all scopes, some at a time, for sessions that are too old or idle."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime

import structlog

from config import SessionSettings
from gateway.errors import Refused
from gateway.sessions import entries as e
from gateway.sessions import fold, upkeep
from gateway.sessions.ledger import Ledger
from gateway.sessions.removal import Removal
from gateway.sessions.state import SessionStatus
from gateway.sessions.upkeep import IsBusy, Leaving, SweepReport

__all__ = ["Sweeping"]

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_SWEPT_PER_CALL = 2000
_SWEPT_AT_ONCE = 50
"""Scopes that are looked at before others get their turn on the event loop."""


class Sweeping:
    def __init__(self, ledger: Ledger, removal: Removal, clock: Callable[[], datetime]) -> None:
        self._ledger = ledger
        self._removal = removal
        self._clock = clock
        self._to_sweep: list[str] = []

    async def sweep(self, settings: SessionSettings, is_busy: IsBusy, *, expires: bool) -> SweepReport:
        """Look at some thousand scopes at most; the next call goes on from there."""
        removed: list[str] = []
        completed: list[str] = []
        for at, name in enumerate(self._next_to_sweep()):
            if at % _SWEPT_AT_ONCE == 0:
                await asyncio.sleep(0)
            removed += await self._expire(name, settings, is_busy) if expires else []
            completed += await self._complete(name, settings, is_busy)
            if expires and upkeep.is_forgotten(self._ledger.books.scopes[name], settings, self._clock()):
                self._ledger.books.drop_scope(name)
        await self._removal.delete_doomed()
        return SweepReport(
            expired=tuple(removed),
            completed=tuple(completed),
            undeletable=len(self._ledger.durability.doomed),
            is_done=not self._to_sweep,
        )

    def _next_to_sweep(self) -> list[str]:
        if not self._to_sweep:
            self._to_sweep = list(self._ledger.books.scopes)
        names = self._to_sweep[-_SWEPT_PER_CALL:]
        del self._to_sweep[-_SWEPT_PER_CALL:]
        return names

    async def _expire(self, name: str, settings: SessionSettings, is_busy: IsBusy) -> list[str]:
        old = upkeep.expired(self._ledger.books.scopes[name], settings, self._clock(), is_busy)
        return [key for key in old if await _managed(self._removal.remove(key, Leaving.EXPIRED), key)]

    async def _complete(self, name: str, settings: SessionSettings, is_busy: IsBusy) -> list[str]:
        idle = upkeep.idle(self._ledger.books.scopes[name], settings, self._clock(), is_busy)
        step = e.Status(value=SessionStatus.COMPLETED, by=fold.IDLE, why="Nobody wrote for a while.")
        return [key for key in idle if await _managed(self._ledger.append(key, [step]), key)]


async def _managed(work: Awaitable[object], key: str) -> bool:
    """Tell whether something worked that nobody has asked for, and nobody waits for."""
    try:
        await work
    except Refused as refusal:
        log.warning("session_not_swept", session=key, reason=str(refusal))
        return False
    return True
