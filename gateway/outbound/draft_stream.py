"""Draft streaming: shows an answer in its chat while it is being written, and the typing status before that."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Self

import structlog
from msgspec.structs import replace

from gateway.aio import finish_before_cancel
from gateway.contract import Channel, Drafts, Edits, Outbound, Receipt, ShowsTyping
from gateway.contract.abilities import abilities_of
from gateway.errors import ChannelError, Transient
from gateway.spool import DeleteDraft, Operation, SaveDraft, Spool, SpoolFull

log = structlog.get_logger()

LAST_EDIT_TIMEOUT = 10.0
"""Seconds that the final text waits for an edit that is still on its way."""

FIRST_DRAFT_DELAY = 0.3
"""Seconds from the first words to the first draft. Channels that allow faster updates than this skip the delay."""

TYPING_DELAY = 0.02
"""Seconds before the typing status is shown. A faster answer does not need it."""

TYPING_INTERVAL = 4.0
"""Seconds between two typing requests. Platforms show the status for about five."""

CLEAR_CHECK_INTERVAL = 0.1
"""Seconds between two checks whether all earlier messages of the chat have been sent."""


class DraftStore:
    """Drafts that are real messages in a chat, by turn. The final text replaces them, even after a crash."""

    def __init__(self, spool: Spool, now: Callable[[], datetime]) -> None:
        self._spool = spool
        self._now = now
        self.receipts: dict[str, Receipt | None] = {}
        """None from just before the draft is sent until the platform has returned its id."""
        self.lost: set[str] = set()
        """Turns whose draft may be in the chat under an unknown id: after a crash, or if the response was lost."""

    def restore(self, found: Mapping[str, Receipt | None]) -> None:
        """Load the drafts that were in their chats when the daemon stopped."""
        self.receipts.update(found)
        self.lost.update(turn for turn, receipt in found.items() if receipt is None)

    async def keep(self, turn: str, receipt: Receipt | None) -> None:
        self.receipts[turn] = receipt
        await self._spool.commit(SaveDraft(turn=turn, receipt=receipt, at=self._now()))

    def drop(self, turn: str) -> list[Operation]:
        """Forget the draft of a turn whose final text was sent or given up. Return the operations for that."""
        if turn not in self.receipts:
            return []
        del self.receipts[turn]
        self.lost.discard(turn)
        return [DeleteDraft(turn=turn)]


class DraftStream:
    """Streams one answer while inside the `async with`. Leaving it stops the drafts and the typing status.

    A channel without drafts gets a message that is edited. That message keeps its place in the chat, so it is sent
    only once the chat `is_clear`: all earlier messages have been sent.
    """

    def __init__(
        self,
        *,
        channel: Channel | None,
        template: Outbound,
        turn: str,
        store: DraftStore,
        is_clear: Callable[[], bool],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._channel = channel
        self._template = template
        self._turn = turn
        self._store = store
        self._is_clear = is_clear
        self._sleep = sleep
        self.is_paused = False
        """True while the turn waits for a person. The typing status is not shown then."""
        self._paragraphs: Sequence[str] = ()
        self._deltas: Sequence[str] | None = None
        self._changed = asyncio.Event()
        self._receipt = store.receipts.get(turn)
        self._is_lost = False
        self._handles: list[asyncio.Handle] = []
        # Not in a task group: entering one for each answer costs more than most answers need.
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        typing = abilities_of(self._channel).typing if self._channel is not None else None
        if typing is not None:
            start = partial(self._start, "typing", partial(self._keep_typing, typing))
            self._handles.append(asyncio.get_running_loop().call_later(TYPING_DELAY, start))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Where drafts and the final send meet:
        # 1. No new draft starts from here on.
        # 2. A draft or an edit on its way is waited for (see `_edit_message`). Otherwise it could reach the platform
        #    after the final text and overwrite it.
        # 3. Only then does the turn commit its answer. Delivery edits the draft if `DraftStore` has its receipt,
        #    and marks the answer as possibly repeated if the draft is lost.
        for handle in self._handles:
            handle.cancel()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await finish_before_cancel(asyncio.wait(self._tasks))

    def show(self, paragraphs: Sequence[str], deltas: Sequence[str] = ()) -> None:
        """Show an answer of finished `paragraphs` and the `deltas` of the one that is being written.

        Both are read when the next draft is sent, so the caller may keep adding to them.
        """
        is_first = self._deltas is None
        self._paragraphs, self._deltas = paragraphs, deltas
        self._changed.set()
        if not is_first or self._channel is None:
            return
        can = abilities_of(self._channel)
        if can.drafts is not None and can.drafts.can_draft(self._template.address):
            start = partial(self._start, "draft", partial(self._send_drafts, can.drafts))
        elif can.edits is not None:
            start = partial(self._start, "draft", partial(self._edit_message, self._channel, can.edits))
        else:
            return
        # In the next iteration of the loop: an answer that is complete by then needs no draft.
        self._handles.append(asyncio.get_running_loop().call_soon(start))

    def _start(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            try:
                await work()
            except Exception:  # A bug in a draft must not cost the person the answer, which follows anyway.
                log.exception("draft_crashed", channel=self._template.address.channel)

        self._tasks.append(asyncio.create_task(run(), name=f"{name}:{self._turn}"))

    async def _next_text(self) -> str:
        await self._changed.wait()
        self._changed.clear()
        return join_paragraphs([*self._paragraphs, "".join(self._deltas or ())])

    async def _send_drafts(self, drafts: Drafts) -> None:
        if drafts.draft_pace >= FIRST_DRAFT_DELAY:
            await self._sleep(FIRST_DRAFT_DELAY)
        while True:
            text = await self._next_text()
            with suppress(ChannelError):  # A lost draft does no harm: the whole answer follows.
                await drafts.draft(replace(self._template, text=text), key=self._turn)
            await self._sleep(drafts.draft_pace)

    async def _edit_message(self, channel: Channel, edits: Edits) -> None:
        shown, limit = "", channel.text_limit
        if edits.edit_pace >= FIRST_DRAFT_DELAY:
            await self._sleep(FIRST_DRAFT_DELAY)
        while True:
            await self._changed.wait()
            while self._receipt is None and not self._is_clear():
                await self._sleep(CLEAR_CHECK_INTERVAL)
            text = (await self._next_text()).rstrip()
            if text == shown or limit.measure(text) > limit.size:
                continue
            pause = edits.edit_pace
            message = replace(self._template, text=text)
            try:
                if self._receipt is None:
                    request = self._send_first(channel, message)
                else:
                    request = edits.edit(self._receipt, message)
                # Run to its end even if the turn ends now: a cancelled request may still arrive, after the final text.
                await finish_before_cancel(request, grace=LAST_EDIT_TIMEOUT)
                shown = text
            except SpoolFull:
                log.debug("draft_not_stored", channel=channel.name)  # Its receipt, if there is one, is in memory.
            except Transient as error:
                if self._is_lost:
                    return  # Another draft could appear in the chat beside the lost one.
                pause = max(pause, error.retry_after or 0.0)
            except ChannelError as refusal:  # A lost draft does no harm: the whole answer follows.
                log.debug("draft_failed", channel=channel.name, reason=str(refusal))
            await self._sleep(pause)

    async def _send_first(self, channel: Channel, message: Outbound) -> None:
        """Send the message that is edited from then on, and store its receipt."""
        if abilities_of(channel).repeats_dropped_for:
            # The final send has the same key. It finds this message even if a crash loses the receipt.
            self._receipt = await channel.send(message, key=self._turn)
        else:
            # 1. Store that a draft may exist. 2. Send it. 3. Store its receipt.
            # After a crash between 2 and 3, the store says that a draft of unknown id may be in the chat.
            await self._store.keep(self._turn, None)
            self._is_lost = True
            try:
                self._receipt = await channel.send(message, key=f"{self._turn}.draft")
                self._is_lost = False
            except ChannelError as error:
                self._is_lost = isinstance(error, Transient) and error.may_have_arrived
                raise
            finally:  # Also when `LAST_EDIT_TIMEOUT` has cancelled the request.
                if self._is_lost:
                    self._store.lost.add(self._turn)
        await self._store.keep(self._turn, self._receipt)

    async def _keep_typing(self, typing: ShowsTyping) -> None:
        while True:
            pause = TYPING_INTERVAL
            if not self.is_paused:
                try:
                    await typing.show_typing(self._template.address)
                except Transient as error:
                    pause = max(pause, error.retry_after or 0.0)
                except ChannelError as refusal:
                    log.debug("typing_failed", channel=self._template.address.channel, reason=str(refusal))
            await self._sleep(pause)


def join_paragraphs(texts: Iterable[str]) -> str:
    """Join texts with blank lines between them, leaving out those that are blank."""
    return "\n\n".join(text for text in texts if text.strip())
