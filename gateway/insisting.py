"""Insisting: what has happened must be written down, so it waits for room when the disk is full."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gateway.aio import backoff
from gateway.spool import SpoolFull

__all__ = ["insist"]

_T = TypeVar("_T")


async def insist(work: Callable[[], Awaitable[_T]], *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> _T:
    """Do `work`, again and again while the spool is full: then nothing of it has happened."""
    waits = backoff()
    while True:
        try:
            return await work()
        except SpoolFull:
            await sleep(next(waits))
