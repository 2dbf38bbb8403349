"""What is done with an update, however it came: it is handed to the core, and whoever pressed a button hears of it."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from aiogram.types import Update

from channels.telegram.albums import Arrived, merged
from channels.telegram.api import BotApi
from channels.telegram.wire import BotIdentity, moved, read
from gateway.contract import Deliver, Inbound, Relocate, Verdict

__all__ = ["Taker"]

STALE = "This button is no longer in use."
NOT_FOR_YOU = "This button is not for you, or does nothing any more."


class Taker:
    """Used as a context, which it leaves once every pressed button has been released: that delays no update."""

    def __init__(self, api: BotApi, deliver: Deliver, relocate: Relocate) -> None:
        self._api = api
        self._deliver = deliver
        self._relocate = relocate
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):  # It goes on as it is; the group would wrap it.
            await self._tasks.__aexit__(None, None, None)
        else:
            await self._tasks.__aexit__(kind, error, trace)

    async def take(self, group: Sequence[Arrived], bot: BotIdentity) -> None:
        """Have one update taken, or the parts of an album as one. When it returns, they may be acknowledged."""
        parts: list[Inbound] = []
        for _, update in group:
            if update is None:
                continue
            inbound = read(update, bot, now=datetime.now(UTC))
            if (change := moved(update, bot)) is not None:
                await self._relocate(*change)
            elif inbound is not None:
                parts.append(inbound)
            elif update.callback_query is not None:
                self._release(update, STALE)
        if parts:
            verdict = await self._deliver(merged(parts))
            self._release(group[0][1], NOT_FOR_YOU if verdict in {Verdict.REFUSED, Verdict.IGNORED} else None)

    def _release(self, update: Update | None, text: str | None) -> None:
        if update is not None and (query := update.callback_query) is not None:
            self._tasks.create_task(self._api.release_button(query.id, text), name=f"telegram:button:{query.id}")
