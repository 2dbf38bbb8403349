"""The moment between taking messages and asking for more, in which an answer to them may go out first."""

import asyncio
from contextlib import suppress

__all__ = ["Breath"]

LONGEST = 0.01
"""Seconds; much less than the way to Telegram and back. What comes meanwhile then comes at once."""


class Breath:
    """Asking for more takes the event loop longer than anything else on a short answer's way."""

    def __init__(self) -> None:
        self._is_out = asyncio.Event()

    async def taken(self) -> None:
        """Wait until an answer is out, but not for long: most models take their time."""
        self._is_out.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(LONGEST):
                await self._is_out.wait()

    def answered(self) -> None:
        self._is_out.set()
