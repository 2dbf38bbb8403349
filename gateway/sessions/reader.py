"""A thread for what reads much and may take its time, so that nobody's append waits behind it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

__all__ = ["Reader"]

_T = TypeVar("_T")


class Reader:
    """Does one thing after the other."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sessions-reader")

    async def do(self, work: Callable[..., _T], *arguments: object) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *arguments))

    async def close(self) -> None:
        """Return once nothing is being read any more."""
        await asyncio.to_thread(self._threads.shutdown)
