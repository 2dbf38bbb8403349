"""Doing something wholly: what must not be cut in half is brought to its end before a cancellation takes effect."""

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import TypeVar

__all__ = ["whole"]

_T = TypeVar("_T")


async def whole(work: Coroutine[None, None, _T], *, patience: float | None = None) -> _T:
    """Do `work`. Cancelled meanwhile, wait for its end, at most `patience` seconds, and be cancelled then.

    Cancelled again while waiting, it gives up.
    """
    task = asyncio.ensure_future(work)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    task.add_done_callback(partial(_tell, done))
    try:
        await done
    except asyncio.CancelledError:
        try:
            await asyncio.wait({task}, timeout=patience)
        finally:
            task.cancel()
        raise
    return task.result()


def _tell(done: asyncio.Future[None], task: asyncio.Future[_T]) -> None:
    """Tell of the end of `task`, and look at its failure: asyncio complains of one that nobody waits for any more."""
    if not task.cancelled():
        task.exception()
    if not done.done():
        done.set_result(None)
