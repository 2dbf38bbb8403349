"""Drafting: shows an answer while it is being written, and that somebody is at it, where the channel can."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import TracebackType

import structlog
from msgspec.structs import replace

from gateway.aio import finish_before_cancel
from gateway.contract import Channel, Drafts, Edits, Outbound, Receipt, ShowsTyping
from gateway.contract.abilities import abilities_of
from gateway.errors import ChannelError, Transient
from gateway.spool import DeleteDraft, Operation, OutboxRow, SaveDraft, Spool

log = structlog.get_logger()

LAST_REQUEST = 10.0
"""Seconds that an answer waits for the last request about its draft."""

SETTLING = 0.3
"""Seconds from the first words of an answer to its first draft, where drafts are no more frequent than that."""

AT_ONCE = 0.02
"""Seconds within which an answer needs no sign that somebody is at it."""

IN_LINE = 0.1
"""Seconds between two looks at whether a chat has heard all that was said before."""

TYPING_INTERVAL = 4.0
"""Platforms show "typing" for about five seconds."""


class Draft:
    """The newest state of an answer that is being written; only the newest is worth showing."""

    def __init__(self, on_begun: Callable[[], object] = lambda: None) -> None:
        self.text = ""
        self.is_resting = False
        """Whether nobody is at it, since it is somebody else's turn to say something."""
        self._on_begun: Callable[[], object] | None = on_begun
        self._changed = asyncio.Event()

    def show(self, text: str) -> None:
        if self._on_begun is not None:
            self._on_begun()
            self._on_begun = None
        self.text = text
        self._changed.set()

    async def begun(self) -> None:
        """Return once there is something to show that has not been shown."""
        await self._changed.wait()

    async def next(self) -> str:
        await self._changed.wait()
        self._changed.clear()
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What is known of a draft that is a message, so that it can be brought to its final text whatever happens.

    `keep` is awaited before that message is sent, and then with its receipt; `receipt` is one kept before a crash.
    `lose` is called when it may be in the chat, and nobody can name it.
    """

    keep: Callable[[Receipt | None], Awaitable[None]]
    lose: Callable[[], None]
    receipt: Receipt | None


class DraftStream:
    """Where one answer is drafted: while inside, the draft is shown, and a sign of life; leaving stops both.

    A draft that is a message which gets edited keeps its place in the chat, so it is sent only when that `is_clear` of
    what is still to be sent before.
    """

    def __init__(
        self,
        *,
        channel: Channel,
        template: Outbound,
        key: str,
        memory: Memory,
        is_clear: Callable[[], bool],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.channel = channel
        self.abilities = abilities_of(channel)
        self.template = template
        self.key = key
        self.memory = memory
        self.is_clear = is_clear
        self.sleep = sleep
        self._receipt = memory.receipt
        self._is_lost = False
        self._draft = Draft(self._begin)
        self._later: list[asyncio.Handle] = []
        self._signs: list[asyncio.Task[None]] = []
        """In no group, which would have to be entered for each answer: most that come at once need no sign."""

    async def __aenter__(self) -> Draft:
        if (typing := self.abilities.typing) is not None:
            self._later.append(asyncio.get_running_loop().call_later(AT_ONCE, self._start_typing, typing))
        return self._draft

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for start in self._later:
            start.cancel()
        for sign in self._signs:
            sign.cancel()
        if self._signs:
            await finish_before_cancel(_ended(self._signs))

    def _begin(self) -> None:
        """Draft once the loop comes round: an answer that is whole before that needs no draft."""
        self._later.append(asyncio.get_running_loop().call_soon(self._start_drafting))

    def _start_drafting(self) -> None:
        can = self.abilities
        if can.drafts is not None and can.drafts.can_draft(self.template.address):
            self._start("draft", partial(self._show, can.drafts, self._draft))
        elif can.edits is not None:
            self._start("draft", partial(self._edit, can.edits, self._draft))

    def _start_typing(self, typing: ShowsTyping) -> None:
        self._start("typing", partial(self._type, typing, self._draft))

    def _start(self, name: str, sign: Callable[[], Awaitable[None]]) -> None:
        self._signs.append(asyncio.create_task(self._safely(sign), name=f"{name}:{self.key}"))

    async def _safely(self, sign: Callable[[], Awaitable[None]]) -> None:
        try:
            await sign()
        except Exception:  # A bug in showing a draft must not cost the person the answer, which follows anyway.
            log.exception("drafting_crashed", channel=self.channel.name)

    async def _show(self, drafts: Drafts, draft: Draft) -> None:
        await self._settled(draft, drafts.draft_pace)
        while True:
            text = await draft.next()
            with contextlib.suppress(ChannelError):  # A draft may be lost; the whole answer follows.
                await drafts.draft(replace(self.template, text=text), key=self.key)
            await self.sleep(drafts.draft_pace)

    async def _settled(self, draft: Draft, pace: float) -> None:
        """Where requests are counted, spend none on an answer that is whole in a moment."""
        await draft.begun()
        if pace >= SETTLING:
            await self.sleep(SETTLING)

    async def _edit(self, edits: Edits, draft: Draft) -> None:
        shown, limit = "", self.channel.text_limit
        await self._settled(draft, edits.edit_pace)
        while True:
            await draft.begun()
            while self._receipt is None and not self.is_clear():
                await self.sleep(IN_LINE)
            text = (await draft.next()).rstrip()
            if text == shown or limit.measure(text) > limit.size:
                continue
            pause = edits.edit_pace
            # A request that is cut short may still arrive, behind the final text.
            try:
                message = replace(self.template, text=text)
                request = self._first(message) if self._receipt is None else edits.edit(self._receipt, message)
                await finish_before_cancel(request, grace=LAST_REQUEST)
                shown = text
            except Transient as trouble:
                if self._is_lost:
                    return  # Another might stand in the chat beside it.
                pause = max(pause, trouble.retry_after or 0.0)
            except ChannelError as refusal:  # As above.
                log.debug("draft_lost", channel=self.channel.name, reason=str(refusal))
            await self.sleep(pause)

    async def _first(self, message: Outbound) -> None:
        """Send the message that will be edited, and have its receipt kept.

        Where repeats are dropped, the answer's own key finds the message again when its receipt is lost in a crash;
        elsewhere it is noted before that there may be one.
        """
        if self.abilities.repeats_dropped_for:
            self._receipt = await self.channel.send(message, key=self.key)
        else:
            await self.memory.keep(None)
            self._receipt = await self._send_once(message)
        await self.memory.keep(self._receipt)

    async def _send_once(self, message: Outbound) -> Receipt:
        """Send what must not be sent again unless it has certainly not arrived."""
        self._is_lost = True
        try:
            receipt = await self.channel.send(message, key=f"{self.key}.draft")
            self._is_lost = False
        except ChannelError as trouble:
            self._is_lost = isinstance(trouble, Transient) and trouble.may_have_arrived
            raise
        finally:  # It may also have been given up, by whoever waits for it.
            if self._is_lost:
                self.memory.lose()
        return receipt

    async def _type(self, typing: ShowsTyping, draft: Draft) -> None:
        while True:
            pause = TYPING_INTERVAL
            if not draft.is_resting:
                try:
                    await typing.show_typing(self.template.address)
                except Transient as trouble:
                    pause = max(pause, trouble.retry_after or 0.0)
                except ChannelError as refusal:  # As above.
                    log.debug("sign_lost", channel=self.channel.name, reason=str(refusal))
            await self.sleep(pause)


async def _ended(signs: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.wait(signs)


class DraftStore:
    """By turn. The part of an answer that takes the place of its draft has the turn as its key."""

    def __init__(self, spool: Spool, now: Callable[[], datetime]) -> None:
        self._spool = spool
        self._now = now
        self._receipts: dict[str, Receipt | None] = {}
        """None until the platform has named the message."""
        self._lost: set[str] = set()
        """Turns whose draft may be in the chat, and cannot be named: after a crash, or when its outcome was lost."""

    def remember(self, found: Mapping[str, Receipt | None]) -> None:
        """Take over what was half streamed when the daemon ended."""
        self._receipts.update(found)
        self._lost.update(turn for turn, receipt in found.items() if receipt is None)

    async def keep(self, turn: str, receipt: Receipt | None) -> None:
        self._receipts[turn] = receipt
        await self._spool.commit(SaveDraft(turn=turn, receipt=receipt, at=self._now()))

    def lose(self, turn: str) -> None:
        """Note that a message may be in the chat which nobody can name."""
        self._lost.add(turn)

    def of_turn(self, turn: str) -> Receipt | None:
        return self._receipts.get(turn)

    def under(self, row: OutboxRow) -> Receipt | None:
        """Return the draft that `row` is the final text of."""
        return self._receipts.get(row.key) if row.key == row.turn else None

    def is_lost(self, row: OutboxRow) -> bool:
        """Tell whether a draft of `row` may stand in the chat for ever."""
        return row.key in self._lost

    def done(self, row: OutboxRow) -> list[Operation]:
        """Forget the draft of `row`, which has come to its end; return what is to be committed with that."""
        if row.key != row.turn or row.key not in self._receipts:
            return []
        del self._receipts[row.key]
        self._lost.discard(row.key)
        return [DeleteDraft(turn=row.key)]
