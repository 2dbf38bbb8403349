"""Handles updates, polled or received by webhook: delivers them to the core and answers button presses."""

import asyncio
from collections.abc import Container, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from channels.telegram.api import BotApi
from channels.telegram.menus import CommandMenus
from channels.telegram.payloads import ReceivedUpdate, Update
from channels.telegram.wire import BotIdentity, read_migration, read_update
from gateway.contract import ChannelContext, Deliver, Inbound, KnowsOwner, Verdict
from gateway.errors import ChannelError

BUTTON_EXPIRED = "This button is no longer in use."
BUTTON_REFUSED = "This button is not for you, or it no longer works."


class UpdateHandler:
    """Delivers updates to the core. Use it as a context manager, which owns the tasks that it starts.

    On exit, background tasks are cancelled. Answers to button presses are still sent, unless the exit is a
    cancellation.
    """

    def __init__(self, api: BotApi, context: ChannelContext, deliver: Deliver) -> None:
        self._api = api
        self._context = context
        self._deliver = deliver
        self._menus = CommandMenus(api, context)
        self._bot: BotIdentity | None = None
        self._tasks = asyncio.TaskGroup()
        self._background: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._background:
            task.cancel()
        if isinstance(error, Exception):
            # Hide the error from the task group, which would wrap it in an ExceptionGroup. Python re-raises it as it
            # is after this method returns.
            await self._tasks.__aexit__(None, None, None)
        else:
            await self._tasks.__aexit__(kind, error, trace)

    def run_in_background(self, work: Coroutine[None, None, None], *, name: str) -> None:
        """Run `work` until it ends or the handler closes. `work` must not raise."""
        task = self._tasks.create_task(work, name=name)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def identify(self) -> BotIdentity:
        """Return who the bot is. The first successful call also starts to register the command menu."""
        if self._bot is None:
            me = await self._api.get_me()
            self._bot = BotIdentity(
                channel=self._context.name,
                account=self._context.account,
                id=me.id,
                username=me.username or "",
                must_be_mentioned=self._context.settings.require_mention,
            )
            self.run_in_background(self._menus.register(), name="telegram:menu")
        return self._bot

    async def require_here(self, received: ReceivedUpdate) -> None:
        """Raise `HeldElsewhere` if another node of the cluster owns the chat of an update."""
        browser, update = self._context.browser, received.update
        if update is None or not isinstance(browser, KnowsOwner):
            return
        inbound = read_update(update, await self.identify(), now=datetime.now(UTC))
        if inbound is not None:
            browser.require_here(inbound.address, inbound.sender)

    async def handle_all(self, received: Sequence[ReceivedUpdate]) -> tuple[set[int], ChannelError | None]:
        """Handle the updates of each chat in order, and all chats concurrently.

        Returns the ids of the updates that were not handled, and the first error. After an error in one chat, its
        later updates are not handled, but those of other chats are.
        """
        left = {each.id for each in received}
        errors: list[ChannelError] = []

        async def handle_chat(groups: Sequence[Sequence[ReceivedUpdate]]) -> None:
            try:
                for group in groups:
                    await self.handle(group)
                    left.difference_update(each.id for each in group)
            except ChannelError as error:
                errors.append(error)

        # Concurrent chats share a commit to the spool. A single chat needs no task, which saves an event loop cycle.
        chats = group_by_chat(received)
        if len(chats) == 1:
            await handle_chat(*chats.values())
        else:
            async with asyncio.TaskGroup() as tasks:
                for chat, groups in chats.items():
                    tasks.create_task(handle_chat(groups), name=f"telegram:chat:{chat}")
        return left, next(iter(errors), None)

    async def handle(self, group: Sequence[ReceivedUpdate]) -> None:
        """Deliver one update, or all parts of an album as one message. Then they may be acknowledged."""
        bot = await self.identify()
        parts: list[Inbound] = []
        for _, update in group:
            if update is None:
                continue
            if (migration := read_migration(update, bot)) is not None:
                await self._context.relocate(*migration)
            elif (inbound := read_update(update, bot, now=datetime.now(UTC))) is not None:
                parts.append(inbound)
            elif update.callback_query is not None:
                self._answer_button(update, BUTTON_EXPIRED)
        if not parts:
            return
        message = parts[0]
        if len(parts) > 1:
            message = replace(
                message,
                text="\n".join(part.text for part in parts if part.text),
                attachments=tuple(file for part in parts for file in part.attachments),
                is_addressed=any(part.is_addressed for part in parts),
            )
        verdict = await self._deliver(message)
        if verdict is Verdict.ACCEPTED and self._menus.is_due(message):
            self.run_in_background(self._menus.update(message), name=f"telegram:menu:{message.address.peer}")
        if (update := group[0].update) is not None:
            self._answer_button(update, BUTTON_REFUSED if verdict in {Verdict.REFUSED, Verdict.IGNORED} else None)

    def _answer_button(self, update: Update, text: str | None) -> None:
        """Answer a button press, if `update` is one. No other update waits for that."""
        if (query := update.callback_query) is not None:
            self._tasks.create_task(self._api.answer_button(query.id, text), name=f"telegram:button:{query.id}")


def group_by_chat(received: Sequence[ReceivedUpdate]) -> Mapping[int | None, Sequence[Sequence[ReceivedUpdate]]]:
    """Group updates by chat, and within a chat the parts of an album. The order within a chat stays.

    Telegram sends each picture of an album as its own message, one directly after the other. Updates of other chats
    may come between them.
    """
    chats: dict[int | None, list[list[ReceivedUpdate]]] = {}
    for each in received:
        groups = chats.setdefault(each.chat, [])
        if groups and each.album is not None and each.album == groups[-1][-1].album:
            groups[-1].append(each)
        else:
            groups.append([each])
    return chats


def find_growing_albums(received: Sequence[ReceivedUpdate], seen: Container[int]) -> set[int]:
    """Return the ids of all updates in albums that may still grow: those that are the last thing in their chat.

    An album that has gained no part since the last look, so that all of its ids are in `seen`, is complete.
    """
    if not any(each.album for each in received):
        return set()
    last_groups = [groups[-1] for groups in group_by_chat(received).values()]
    growing = [group for group in last_groups if group[0].album and any(each.id not in seen for each in group)]
    return {each.id for group in growing for each in group}
