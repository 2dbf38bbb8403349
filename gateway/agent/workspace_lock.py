"""The lock of a workspace: calls that change files run at the same time, but none of them next to an approved call.

An approved call is checked against the files that its person has seen. Without the lock, a call of another session
could change a file between that check and the moment in which the command reads it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from weakref import WeakValueDictionary


class WorkspaceLock:
    def __init__(self) -> None:
        self._shared = 0
        self._is_exclusive = False
        self._waiting_exclusive = 0
        self._waiters: list[asyncio.Future[None]] = []

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Hold the lock together with other shared holders. Those that want it alone take precedence."""
        await self._wait_until(lambda: not self._is_exclusive and not self._waiting_exclusive)
        self._shared += 1
        try:
            yield
        finally:
            self._shared -= 1
            self._wake()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Hold the lock alone."""
        self._waiting_exclusive += 1
        try:
            await self._wait_until(lambda: not self._is_exclusive and not self._shared)
            self._is_exclusive = True
        finally:
            self._waiting_exclusive -= 1
            if not self._is_exclusive:  # Cancelled: shared holders may go on.
                self._wake()
        try:
            yield
        finally:
            self._is_exclusive = False
            self._wake()

    async def _wait_until(self, may_enter: Callable[[], bool]) -> None:
        while not may_enter():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                self._waiters.remove(waiter)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


class WorkspaceLocks:
    """The lock of each workspace. It exists only while a call holds it or waits for it."""

    def __init__(self) -> None:
        self._locks = WeakValueDictionary[Path, WorkspaceLock]()

    def __getitem__(self, workspace: Path) -> WorkspaceLock:
        return self._locks.setdefault(workspace, WorkspaceLock())
