"""What is done with an update, however it came: it is handed to the core, and whoever pressed a button hears of it."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from aiogram.types import Update

from channels.telegram.albums import Arrived, by_chat, merged
from channels.telegram.api import BotApi
from channels.telegram.wire import BotIdentity, moved, read
from gateway.contract import Deliver, Inbound, Relocate, Verdict
from gateway.errors import ChannelError

__all__ = ["Taker"]

STALE = "This button is no longer in use."
NOT_FOR_YOU = "This button is not for you, or does nothing any more."


class Taker:
    """Used as a context, which it leaves once all that is done aside is done, like releasing pressed buttons.

    What is done `meanwhile` is given up then.
    """

    def __init__(self, api: BotApi, deliver: Deliver, relocate: Relocate) -> None:
        self._api = api
        self._deliver = deliver
        self._relocate = relocate
        self._tasks = asyncio.TaskGroup()
        self._meanwhile: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._meanwhile:
            task.cancel()
        if isinstance(error, Exception):  # It goes on as it is; the group would wrap it.
            await self._tasks.__aexit__(None, None, None)
        else:
            await self._tasks.__aexit__(kind, error, trace)

    def aside(self, work: Coroutine[None, None, None], *, name: str) -> None:
        """Do something, which may not fail, that no update has to wait for."""
        self._tasks.create_task(work, name=name)

    def meanwhile(self, work: Coroutine[None, None, None], *, name: str) -> None:
        """Do something, which may not fail and may take its time: nobody waits for its end."""
        self._meanwhile.append(self._tasks.create_task(work, name=name))

    async def take_all(self, arrived: Sequence[Arrived], bot: BotIdentity) -> tuple[set[int], ChannelError | None]:
        """Have each chat's updates taken in their order, and all chats at once: one commit then serves many of them.

        Return the ids of those that were not taken, and why. Later ones of other chats may have been taken all the
        same.
        """
        left = {number for number, _ in arrived}
        troubles: list[ChannelError] = []

        async def take_in_order(groups: Sequence[Sequence[Arrived]]) -> None:
            try:
                for group in groups:
                    await self.take(group, bot)
                    left.difference_update(number for number, _ in group)
            except ChannelError as trouble:
                troubles.append(trouble)

        await _side_by_side(
            {f"telegram:chat:{chat}": take_in_order(groups) for chat, groups in by_chat(arrived).items()}
        )
        return left, next(iter(troubles), None)

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
            self.aside(self._api.release_button(query.id, text), name=f"telegram:button:{query.id}")


async def _side_by_side(works: Mapping[str, Coroutine[None, None, None]]) -> None:
    """Do all at once, each under its name; one alone needs no task, which saves it a round of the event loop."""
    if len(works) == 1:
        await next(iter(works.values()))
        return
    async with asyncio.TaskGroup() as tasks:
        for name, work in works.items():
            tasks.create_task(work, name=name)
