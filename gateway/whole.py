"""Doing something wholly: what must not be cut in half is brought to its end before a cancellation takes effect."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

__all__ = ["whole"]

_T = TypeVar("_T")


async def whole(work: Coroutine[None, None, _T], *, patience: float | None = None) -> _T:
    """Do `work`. Cancelled meanwhile, wait for its end, at most `patience` seconds, and be cancelled then.

    Cancelled again while waiting, it gives up.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(_look_at)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        try:
            await asyncio.wait({task}, timeout=patience)
        finally:
            task.cancel()
        raise


def _look_at(task: asyncio.Future[_T]) -> None:
    """Keep asyncio from complaining of a failure that nobody has waited for any more."""
    if not task.cancelled():
        task.exception()
