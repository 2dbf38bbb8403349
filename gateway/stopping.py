"""Stopping: an orderly end that somebody has asked for, and the waits that asking again cuts short."""

import asyncio
from collections.abc import Coroutine

__all__ = ["Stopping"]


class Stopping:
    """Asked once, what runs may finish; asked twice, nobody waits for it."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._hurrying = asyncio.Event()
        self.wants_restart = False

    def ask(self) -> None:
        if self._asked.is_set():
            self._hurrying.set()
        self._asked.set()

    def ask_to_restart(self) -> None:
        self.wants_restart = True
        self.ask()

    def is_asked(self) -> bool:
        return self._asked.is_set()

    async def asked(self) -> None:
        """Return once somebody has asked."""
        await self._asked.wait()

    async def wait_for(self, done: Coroutine[None, None, None], seconds: float) -> None:
        """Wait for `done`, until the deadline or until asked again."""
        async with asyncio.TaskGroup() as tasks:
            waits = {
                tasks.create_task(done, name="shutdown:waiting"),
                tasks.create_task(_wait(self._hurrying), name="shutdown:hurrying"),
            }
            _, unfinished = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for each in unfinished:
                each.cancel()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
