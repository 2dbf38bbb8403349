"""A stream that may not fall silent."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TypeVar

__all__ = ["punctual"]

T = TypeVar("T")


async def punctual(stream: AsyncIterator[T], idle: float) -> AsyncGenerator[T, None]:
    """Pass a stream on; raise TimeoutError when an item takes longer than `idle` seconds, however many bytes come."""
    while True:
        try:
            async with asyncio.timeout(idle):
                item = await anext(stream)
        except StopAsyncIteration:
            return
        yield item
