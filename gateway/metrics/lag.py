"""How late the event loop is: a sleeper that looks at the clock when it wakes."""

import asyncio
from collections.abc import Callable

__all__ = ["watch_lag"]

_EVERY = 0.5
"""Seconds between two looks; shorter hold-ups may fall between them, and hurt nobody."""


async def watch_lag(note: Callable[[float], None], every: float = _EVERY) -> None:
    """Call `note` with the seconds by which each awakening was late, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + every
        await asyncio.sleep(every)
        note(max(loop.time() - due, 0.0))
