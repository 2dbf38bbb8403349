"""Listening: sets the webhook, looks now and then whether Telegram can call us, and removes it at the end."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from time import time

import structlog

from channels.telegram.api import BotApi
from channels.telegram.pauses import pauses
from config import Secret
from gateway.contract import Pulse
from gateway.errors import AuthRejected, ChannelError, Transient

__all__ = ["Listener"]

log = structlog.get_logger()

LOOK_EVERY = 45.0
"""Seconds between two looks at how Telegram fares with us."""
LAST_CALL = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    api: BotApi
    pulse: Pulse
    url: str
    secret: Secret
    clock: Callable[[], float] = time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def run(self) -> None:
        """Keep the webhook set until cancelled or until the token is refused."""
        try:
            await self._keep()
        except AuthRejected:
            raise
        except BaseException:  # Also when cancelled, which is how a channel ends.
            await self._remove()
            raise

    async def _keep(self) -> None:
        waits = pauses()
        is_set = False
        while True:
            try:
                is_set = is_set or await self._set()
                trouble = await self._trouble()
            except AuthRejected:
                raise
            except ChannelError as failure:
                self.pulse.down(str(failure))
                asked = failure.retry_after if isinstance(failure, Transient) else None
                await self.sleep(asked or next(waits))
                continue
            waits = pauses()
            if trouble is None:
                self.pulse.up()
            else:
                self.pulse.down(trouble)
                is_set = False
            await self.sleep(LOOK_EVERY)

    async def _set(self) -> bool:
        await self.api.set_webhook(self.url, self.secret)
        return True

    async def _trouble(self) -> str | None:
        """Say why Telegram does not reach us, if it does not."""
        state = await self.api.webhook()
        if state.url != self.url:
            return "Another program has taken this bot's webhook. Stop it, or give each its own bot."
        is_recent = state.failed_at is not None and self.clock() - state.failed_at < 2 * LOOK_EVERY
        if is_recent and state.waiting:
            return f"Telegram cannot deliver to {self.url}: {state.failure}"
        return None

    async def _remove(self) -> None:
        """Let Telegram keep what comes until we are back, rather than call where nobody is."""
        with suppress(ChannelError, TimeoutError):
            async with asyncio.timeout(LAST_CALL):
                await self.api.delete_webhook()
