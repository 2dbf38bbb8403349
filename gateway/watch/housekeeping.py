"""Housekeeping: what is done now and then beside the conversations, so that they last and the disk has room."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

from gateway.access.live import Live
from gateway.files.uploads import FileRoutes
from gateway.garbage import give_back
from gateway.sessions import SessionManager
from gateway.spool import Spool, SpoolFull
from gateway.watch.flushes import Flushes
from gateway.watch.free_space import FreeSpace
from gateway.watch.steadiness import Steadiness

__all__ = ["Housekeeping"]

_WORTH_IT = 100
"""Transactions of the spool after which there may be memory to be given back."""


class Housekeeping:
    def __init__(
        self,
        *,
        live: Live,
        flushes: Flushes,
        space: FreeSpace,
        sessions: SessionManager,
        spool: Spool,
        uploads: FileRoutes,
        now: Callable[[], datetime],
    ) -> None:
        self._live = live
        self._flushes = flushes
        self._space = space
        self._sessions = sessions
        self._spool = spool
        self._uploads = uploads
        self._now = now
        self._steadiness = Steadiness()
        self._given_back_at = 0
        """How much had been stored by then."""

    async def run(self) -> None:
        """Go round until cancelled: sooner than usual while flushes fail."""
        while True:
            await self._space.look()
            await asyncio.sleep(self._sessions.next_flush(self._live.settings.gateway.flush_interval))
            await self._flushes.flush()
            with suppress(SpoolFull):  # There is more room some other time.
                await self._tidy_up()
            await self._uploads.tidy()
            await self._give_back()

    async def _give_back(self) -> None:
        """Give memory back after some work; without any there is none."""
        stored = self._spool.transactions
        if stored - self._given_back_at >= _WORTH_IT:
            self._given_back_at = stored
            await asyncio.to_thread(give_back)

    async def _tidy_up(self) -> None:
        is_steady = self._steadiness.look(self._now(), asyncio.get_running_loop().time())
        await self._sessions.sweep(expires=is_steady)
        await self._spool.tidy(self._now())
