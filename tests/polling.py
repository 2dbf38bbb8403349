"""Waiting for a state that announces no event, such as a file that another process writes."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable

POLL_INTERVAL = 0.01


async def until(holds: Callable[[], Awaitable[object] | object], *, within: float = 60.0) -> None:
    """Return once the condition holds; check it every few milliseconds. Raises `TimeoutError`."""
    async with asyncio.timeout(within):
        while True:
            result = holds()
            if inspect.isawaitable(result):
                result = await result
            if result:
                return
            await asyncio.sleep(POLL_INTERVAL)
