"""Draft streaming: shows an answer in its chat while it is being written, and the typing status before that."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import count, takewhile
from types import TracebackType
from typing import Self

import structlog
from msgspec.structs import replace

from gateway.aio import finish_before_cancel
from gateway.contract import Channel, Drafts, Edits, Outbound, Receipt, ShowsTyping
from gateway.contract.abilities import abilities_of
from gateway.errors import ChannelError, Transient
from gateway.spool import DeleteDraft, Operation, SaveDraft, Spool, SpoolUnavailable
from gateway.text.splitting import GrowingText

log = structlog.get_logger()

LAST_EDIT_TIMEOUT = 10.0
"""Seconds that the final text waits for an edit that is still on its way."""

FIRST_DRAFT_DELAY = 0.3
"""Seconds from the first words to the first draft. Channels that allow faster updates than this skip the delay."""

TYPING_DELAY = 0.3
"""Seconds before the typing status is shown. A faster answer does not need it, and must not wait behind its request."""

TYPING_INTERVAL = 4.0
"""Seconds between two typing requests. Platforms show the status for about five."""

CLEAR_CHECK_INTERVAL = 0.1
"""Seconds between two checks whether all earlier messages of the chat have been sent."""


def part_key(turn: str, number: int) -> str:
    """Return the key of a part of the answer of `turn`, counted from 0."""
    return f"{turn}.{number}" if number else turn


class DraftStore:
    """Drafts that are real messages in a chat, by the key of their part.

    The final text replaces them, even after a crash.
    """

    def __init__(self, spool: Spool, now: Callable[[], datetime]) -> None:
        self._spool = spool
        self._now = now
        self.receipts: dict[str, Receipt | None] = {}
        """None from just before the draft is sent until the platform has returned its id."""
        self.texts: dict[str, str] = {}
        """The texts that the platform has accepted for drafts of this run."""
        self.lost: set[str] = set()
        """Drafts that may be in the chat under an unknown id: after a crash, or if the response was lost."""

    @property
    def safe_seconds_left(self) -> float:
        return self._spool.safe_seconds_left

    def restore(self, found: Mapping[str, Receipt | None]) -> None:
        """Load the drafts that were in their chats when the daemon stopped."""
        self.receipts.update(found)
        self.lost.update(key for key, receipt in found.items() if receipt is None)

    async def keep(self, key: str, receipt: Receipt | None) -> None:
        self.receipts[key] = receipt
        await self._spool.commit(SaveDraft(turn=key, receipt=receipt, at=self._now()))

    def drop(self, key: str) -> list[Operation]:
        """Forget the draft of a part whose final text was sent or given up. Return the operations for that."""
        if key not in self.receipts:
            return []
        del self.receipts[key]
        self.texts.pop(key, None)
        self.lost.discard(key)
        return [DeleteDraft(turn=key)]

    def keys_of(self, turn: str) -> list[str]:
        """Return the keys of the parts of an answer that may be in its chat, in their order."""
        keys = (part_key(turn, number) for number in count())
        return list(takewhile(self.receipts.__contains__, keys))


class _BecomesFile(Exception):
    """The answer is longer than `max_parts`. The rest of it is not streamed."""


class DraftStream:
    """Streams one answer while inside the `async with`. Leaving it stops the drafts and the typing status.

    A channel without drafts gets a message that is edited. That message keeps its place in the chat, so it is sent
    only once the chat `is_clear`: all earlier messages have been sent.

    When the answer outgrows a message, that message is finished where the answer will be split, and the stream goes on
    in the next one. People can read on without the text moving away. All of this is a preview: the parts of the answer
    are fixed when it is committed, and delivery edits the messages to them.
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
        part_size: int,
        max_parts: Callable[[], int] = lambda: 0,
    ) -> None:
        """Messages are cut at `part_size`. An answer of more than `max_parts` becomes a file; 0: it never does."""
        self._max_parts = max_parts
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
        self._part_size = part_size
        self._number = 0
        """The part that is being written."""
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
        can, loop = abilities_of(self._channel), asyncio.get_running_loop()
        drafts = can.drafts if can.drafts is not None and can.drafts.can_draft(self._template.address) else None
        if drafts is not None:
            pace = drafts.draft_pace
        elif can.edits is not None:
            pace = can.edits.edit_pace
        else:
            return
        start = partial(self._start, "draft", partial(self._stream, self._channel, drafts, can.edits, pace))
        # An answer that is complete by then needs no draft, and costs no task.
        delay = FIRST_DRAFT_DELAY if pace >= FIRST_DRAFT_DELAY else 0.0
        self._handles.append(loop.call_later(delay, start) if delay else loop.call_soon(start))

    def _start(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            try:
                await work()
            except Exception:  # A bug in a draft must not cost the person the answer, which follows anyway.
                log.exception("draft_crashed", channel=self._template.address.channel)

        self._tasks.append(asyncio.create_task(run(), name=f"{name}:{self._turn}"))

    async def _stream(self, channel: Channel, drafts: Drafts | None, edits: Edits | None, pace: float) -> None:
        parts = GrowingText(self._part_size, channel.text_limit.measure) if edits is not None else None
        while True:
            await self._changed.wait()
            if drafts is None:
                await self._wait_until_clear()
            self._changed.clear()
            if self._store.safe_seconds_left <= 0:  # The next owner may have sent the final text.
                return
            text = join_paragraphs([*self._paragraphs, "".join(self._deltas or ())])
            pause = pace
            try:
                if edits is not None and parts is not None:
                    await self._show_parts(parts, channel, drafts, edits, text)
                elif drafts is not None:
                    await drafts.draft(replace(self._template, text=text), key=self._turn)
            except _BecomesFile:
                return
            except SpoolUnavailable:
                log.debug("draft_not_stored", channel=channel.name)  # Its receipt, if there is one, is in memory.
            except Transient as error:
                if self._is_lost:
                    return  # Another draft could appear in the chat beside the lost one.
                pause = max(pause, error.retry_after or 0.0)
            except ChannelError as refusal:  # A lost draft does no harm: the whole answer follows.
                log.debug("draft_failed", channel=channel.name, reason=str(refusal))
            await self._sleep(pause)

    async def _show_parts(
        self, parts: GrowingText, channel: Channel, drafts: Drafts | None, edits: Edits, text: str
    ) -> None:
        """Finish the messages that are full, and show the one that is being written."""
        while (finished := parts.finished_part(text)) is not None:
            if 0 < self._max_parts() <= self._number + 1:
                raise _BecomesFile
            await self._wait_until_clear()
            await self._put(channel, edits, finished)
            parts.next_part(text)
            self._number += 1
        growing = parts.unfinished_part(text)
        key = part_key(self._turn, self._number)
        if drafts is not None and self._store.receipts.get(key) is None:
            await drafts.draft(replace(self._template, text=growing), key=key)
        elif growing.rstrip():
            await self._put(channel, edits, growing.rstrip())

    async def _wait_until_clear(self) -> None:
        while self._store.receipts.get(part_key(self._turn, self._number)) is None and not self._is_clear():
            await self._sleep(CLEAR_CHECK_INTERVAL)

    async def _put(self, channel: Channel, edits: Edits, text: str) -> None:
        """Show `text` in the message of the current part."""
        key, message = part_key(self._turn, self._number), replace(self._template, text=text)
        if text == self._store.texts.get(key):
            return
        receipt = self._store.receipts.get(key)
        request = self._send_first(channel, message, key) if receipt is None else edits.edit(receipt, message)
        # Run to its end even if the turn ends now: a cancelled request may still arrive, after the final text.
        await finish_before_cancel(request, grace=LAST_EDIT_TIMEOUT)
        self._store.texts[key] = text

    async def _send_first(self, channel: Channel, message: Outbound, key: str) -> None:
        """Send the message of a part, which is edited from then on, and store its receipt."""
        if abilities_of(channel).repeats_dropped_for:
            # The final send has the same key. It finds this message even if a crash loses the receipt.
            receipt = await channel.send(message, key=key)
        else:
            # 1. Store that a draft may exist. 2. Send it. 3. Store its receipt.
            # After a crash between 2 and 3, the store says that a draft of unknown id may be in the chat.
            await self._store.keep(key, None)
            self._is_lost = True
            try:
                receipt = await channel.send(message, key=f"{key}.draft")
                self._is_lost = False
            except ChannelError as error:
                self._is_lost = isinstance(error, Transient) and error.may_have_arrived
                raise
            finally:  # Also when `LAST_EDIT_TIMEOUT` has cancelled the request.
                if self._is_lost:
                    self._store.lost.add(key)
        await self._store.keep(key, receipt)

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
