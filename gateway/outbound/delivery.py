"""Delivery: brings what is in the outbox to its chat, in order, trying again while that can help."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import structlog
from msgspec.structs import replace

from gateway.aio import backoff_delays
from gateway.contract import Address, Button, Channel, Enclosure, Outbound, Receipt
from gateway.contract.abilities import abilities_of
from gateway.errors import AuthRejected, Refused, Transient, Undeliverable
from gateway.files.identify import in_bytes
from gateway.lanes import Lanes
from gateway.metrics import DEAD, DELIVERED, Metrics
from gateway.outbound.streaming import Draft, DraftStore, DraftStream, Memory
from gateway.spool import (
    AddToOutbox,
    MarkDead,
    MarkDelivered,
    MarkSending,
    Operation,
    OutboxRow,
    OutboxState,
    RetryLater,
    Spool,
)
from gateway.spool.spool import retry_while_full
from gateway.text import split

log = structlog.get_logger()

POSSIBLY_REPEATED = "(possibly repeated)\n"
"""Stands before a message whose first send had no known outcome; each part leaves room for it."""


class Composer:
    """Composes for one chat of `channel`; None is one that is not enabled, and takes everything as it is."""

    def __init__(self, channel: Channel | None, *, at: datetime, is_clear: bool) -> None:
        """Where the chat `is_clear` of earlier messages, the first part is stored as one that is being sent."""
        self._channel = channel
        self._at = at
        self._is_clear = is_clear

    def compose(
        self, message: Outbound, *, key: str, turn: str | None, files: Sequence[Enclosure]
    ) -> list[AddToOutbox]:
        """Cut `message` to the platform's measure; the buttons hang on the last part. Each of `files` is one more."""
        if self._channel is None:
            words = [AddToOutbox(key=key, turn=turn, message=message, at=self._at)]
        else:
            message, files = _divided(self._channel, message, files) if files else (message, ())
            words = self._words(self._channel, message, key, turn)
        return [*words, *self._enclosed(message, key, turn, files)] if files else words

    def _words(self, channel: Channel, message: Outbound, key: str, turn: str | None) -> list[AddToOutbox]:
        limit, can = channel.text_limit, abilities_of(channel)
        texts = split(message.text, limit.size - limit.measure(POSSIBLY_REPEATED), limit.measure)
        buttons = message.buttons[: can.max_buttons]
        is_first = self._is_clear and not can.repeats_dropped_for
        last = len(texts) - 1
        return [
            AddToOutbox(
                key=f"{key}.{number}" if number else key,
                turn=turn,
                message=_part(message, text, buttons if number == last else ()),
                at=self._at,
                is_sending=is_first and number == 0,
            )
            for number, text in enumerate(texts)
        ]

    def _enclosed(self, message: Outbound, key: str, turn: str | None, files: Sequence[Enclosure]) -> list[AddToOutbox]:
        bare = replace(message, text="", buttons=(), restored=0)
        return [
            AddToOutbox(key=f"{key}.file{number}", turn=turn, message=replace(bare, file=file), at=self._at)
            for number, file in enumerate(files, start=1)
        ]


def possibly_repeated(message: Outbound) -> Outbound:
    return replace(message, text=POSSIBLY_REPEATED + message.text)


def _divided(channel: Channel, message: Outbound, files: Sequence[Enclosure]) -> tuple[Outbound, list[Enclosure]]:
    """Tell in words of the files that the channel cannot send; return the rest."""
    sendable = [file for file in files if _can_send(channel, file)]
    told = [_unsendable(file) for file in files if file not in sendable]
    return replace(message, text="\n\n".join(filter(None, [message.text, *told]))), sendable


def _can_send(channel: Channel, file: Enclosure) -> bool:
    sends = abilities_of(channel).sends_files
    return sends is not None and file.size <= sends.max_file_bytes


def _unsendable(file: Enclosure) -> str:
    return f"(There is a file for you, {file.name}, {in_bytes(file.size)}, but this chat cannot take it.)"


def _part(message: Outbound, text: str, buttons: tuple[Button, ...]) -> Outbound:
    is_whole = text == message.text and buttons == message.buttons
    return message if is_whole else replace(message, text=text, buttons=buttons)


CLOCKS_DIFFER_BY = timedelta(minutes=15)
"""How much the platform's clock may be behind ours."""
KNOWN_FOR = timedelta(days=1)
"""How long before a message another may have been delivered that stands behind the same question in its chat."""


class Courier:
    """Raises what the channel raises: whether that is tried again is not for it to say."""

    def __init__(
        self,
        spool: Spool,
        sketches: DraftStore,
        *,
        now: Callable[[], datetime],
        file_path: Callable[[str], Awaitable[Path]],
    ) -> None:
        self._spool = spool
        self._sketches = sketches
        self._now = now
        self._file_path = file_path

    def are_repeats_dropped(self, channel: Channel, row: OutboxRow) -> bool:
        """Tell whether the platform still knows the key; where the clock was put back meanwhile, nobody can tell."""
        window = abilities_of(channel).repeats_dropped_for
        age = (self._now() - row.created_at).total_seconds()
        return window == math.inf or 0 <= age < window

    async def bring(self, channel: Channel, row: OutboxRow, *, may_repeat: bool) -> Receipt:
        """Bring a half-streamed draft to its final text; otherwise send anew."""
        edits = abilities_of(channel).edits
        draft = self._sketches.under(row)
        if draft is None or edits is None:
            return await self._send(channel, row, may_repeat=may_repeat)
        try:
            await edits.edit(draft, self._marked_if_lost(channel, row))
        except Undeliverable:  # The draft is gone or too old to be edited.
            return await self._send(channel, row, may_repeat=may_repeat)
        return draft

    async def _send(self, channel: Channel, row: OutboxRow, *, may_repeat: bool) -> Receipt:
        """Send, unless the chat shows that it has arrived; mark it where nobody can tell."""
        message = self._marked_if_lost(channel, row)
        if may_repeat:
            try:
                found = await self._find(channel, row)
            except Undeliverable:
                message = possibly_repeated(row.message)
            else:
                if found is not None:
                    return found
        if message.file is not None:
            return await self._send_file(channel, row.key, message, message.file)
        return await channel.send(message, key=row.key)

    async def _find(self, channel: Channel, row: OutboxRow) -> Receipt | None:
        """Look for a message in its chat; None when it is not there, `Undeliverable` when that cannot be told."""
        back = abilities_of(channel).back
        if back is None or row.message.file is not None:
            raise Undeliverable("The platform cannot be asked.")
        known = await self._spool.delivered_ids(row.created_at - KNOWN_FOR)
        since = min(row.created_at, self._now()) - CLOCKS_DIFFER_BY
        return await back.look_back(row.message, since=since, known=known)

    async def _send_file(self, channel: Channel, key: str, message: Outbound, file: Enclosure) -> Receipt:
        """Send a file; where that cannot be, say so in its place."""
        sends = abilities_of(channel).sends_files
        reason = "files cannot be sent here"
        if sends is not None:
            try:
                return await sends.send_file(message, await self._file_path(file.ref), key=key)
            except (Undeliverable, Refused) as refusal:
                reason = str(refusal)
        log.warning("file_not_sent", channel=channel.name, key=key, reason=reason)
        text = f"{message.text}(The file {file.name}, {in_bytes(file.size)}, could not be sent: {reason})"
        return await channel.send(replace(message, text=text, file=None), key=key)

    def _marked_if_lost(self, channel: Channel, row: OutboxRow) -> Outbound:
        """Mark what may stand in the chat for ever by half; one sent anew under its key may be the same message."""
        is_lost = self._sketches.is_lost(row) and not abilities_of(channel).repeats_dropped_for
        return possibly_repeated(row.message) if is_lost else row.message


SEND_DEADLINE = 60.0
FILE_DEADLINE = 600.0
NOTED_WITHIN = 0.002
"""Seconds for which a delivery waits to be written down with something else, such as the next message."""
GIVE_UP_AFTER = 24 * 3600.0
"""Seconds of waiting after which a reply is set aside; `gatehouse spool retry` sends it all the same."""


async def _nowhere(ref: str) -> Path:
    raise Refused(f"{ref} is not kept here")


class Delivery:
    """Use: `compose` what is to be said, commit that together with whatever it belongs to, then `post` it."""

    def __init__(
        self,
        channels: Mapping[tuple[str, str], Channel],
        spool: Spool,
        *,
        now: Callable[[], datetime],
        file_path: Callable[[str], Awaitable[Path]] = _nowhere,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        metrics: Metrics | None = None,
    ) -> None:
        self._channels = channels
        self._spool = spool
        self._now = now
        self._sleep = sleep
        self.metrics = metrics or Metrics()
        self._sketches = DraftStore(spool, now)
        self._courier = Courier(spool, self._sketches, now=now, file_path=file_path)
        self._parked: list[OutboxRow] = []
        self._marked: set[str] = set()
        """Keys of parts that are about to be sent for the first time, and were committed as such."""
        self._sent: set[str] = set()
        """Chats in which something was sent just now, which is yet to be written down."""
        self.chats: Lanes[OutboxRow] = Lanes(self._deliver, name="chat")

    def compose(
        self, message: Outbound, *, key: str, turn: str | None = None, files: Sequence[Enclosure] = ()
    ) -> list[AddToOutbox]:
        """Make the parts in which `message` goes out, the files behind its words."""
        is_clear = self._is_clear(_chat(message.address))
        composer = Composer(self._channel(message), at=self._now(), is_clear=is_clear)
        return composer.compose(message, key=key, turn=turn, files=files)

    def _is_clear(self, chat: str) -> bool:
        """Tell whether what is posted now is the next to be sent: nothing is before it that has not been sent."""
        return not self.chats.is_busy(chat) or (chat in self._sent and not self.chats.has_waiting(chat))

    def compose_all(
        self, messages: Sequence[Outbound], *, turn: str, files: Sequence[Enclosure] = ()
    ) -> list[AddToOutbox]:
        """Compose the end of `turn` for each chat that it concerns; the first has the key of the draft, if any."""
        keys = [turn, *(f"{turn}.chat{number}" for number in range(1, len(messages)))]
        composed = [
            self.compose(message, key=key, turn=turn, files=files) for message, key in zip(messages, keys, strict=True)
        ]
        return [part for parts in composed for part in parts]

    def post(self, parts: Sequence[AddToOutbox]) -> None:
        """Deliver parts that have been committed, behind what their chat still waits for."""
        for part in parts:
            if part.is_sending:
                self._marked.add(part.key)
            self.resume(
                OutboxRow(
                    key=part.key,
                    turn=part.turn,
                    state=OutboxState.PENDING,
                    message=part.message,
                    created_at=part.at,
                    sending_at=None,
                    attempts=0,
                    reason="",
                )
            )

    def take_up(self, row: OutboxRow) -> None:
        """Deliver a row that a start has found. Where the platform drops repeats, a send has left no mark in it."""
        channel = self._channel(row.message)
        if channel is not None and abilities_of(channel).repeats_dropped_for > 0:
            row = replace(row, state=OutboxState.SENDING)
        self.resume(row)

    def resume(self, row: OutboxRow) -> None:
        """Deliver a row of the outbox, new or revived by a person."""
        self.chats.put(_chat(row.message.address), row)

    def channels_changed(self) -> None:
        """Try again what waited for a channel that was not enabled."""
        parked, self._parked = self._parked, []
        for row in parked:
            self.resume(row)

    def remember_drafts(self, drafts: Mapping[str, Receipt | None]) -> None:
        """Take over what was half streamed when the daemon ended."""
        self._sketches.remember(drafts)

    def drafting(self, template: Outbound, *, turn: str) -> AbstractAsyncContextManager[Draft]:
        """While inside, show the answer to `turn` as it grows."""
        channel = self._channel(template)
        if channel is None:
            return nullcontext(Draft())
        return DraftStream(
            channel=channel,
            template=template,
            key=turn,
            memory=Memory(
                keep=partial(self._sketches.keep, turn),
                lose=partial(self._sketches.lose, turn),
                receipt=self._sketches.of_turn(turn),
            ),
            is_clear=lambda: self._is_clear(_chat(template.address)),
            sleep=self._sleep,
        )

    async def _deliver(self, row: OutboxRow) -> None:
        """Send until it has arrived, cannot arrive, or is too old. Cancelled, it stays in the outbox as it is."""
        is_doubtful = row.state is OutboxState.SENDING
        waited = 0.0  # Counted, not read off a clock: one that jumps must not give anything up.
        waits = backoff_delays()
        while True:
            channel = self._channel(row.message)
            if channel is None:
                self._parked.append(row)
                return
            trouble = await self._try(channel, row, is_doubtful=is_doubtful)
            if trouble is None:
                return
            is_doubtful = is_doubtful or trouble.may_have_arrived
            if waited > GIVE_UP_AFTER:
                await self._bury(row, f"given up after a day: {trouble}")
                return
            pause = next(waits) if trouble.retry_after is None else trouble.retry_after
            await self._sleep(pause)
            waited += pause

    async def _try(self, channel: Channel, row: OutboxRow, *, is_doubtful: bool) -> Transient | None:
        """Send once and write down how it went; return why it should be tried again, if it should."""
        repeats_are_dropped = self._courier.are_repeats_dropped(channel, row)
        if row.key in self._marked:
            self._marked.discard(row.key)
        elif not repeats_are_dropped:
            await self.record(MarkSending(key=row.key, at=self._now()))
        may_repeat = is_doubtful and not repeats_are_dropped
        try:
            async with asyncio.timeout(SEND_DEADLINE if row.message.file is None else FILE_DEADLINE):
                receipt = await self._courier.bring(channel, row, may_repeat=may_repeat)
        except Undeliverable as refusal:
            await self._bury(row, str(refusal))
            return None
        except (Transient, AuthRejected) as failure:
            # Without a valid token it waits: where the channel reads it hears the same, and is retired.
            trouble = failure if isinstance(failure, Transient) else Transient(str(failure))
            if not (trouble.may_have_arrived or is_doubtful or repeats_are_dropped):
                await self.record(RetryLater(key=row.key, reason=str(trouble)))
            return trouble
        except TimeoutError:
            return Transient("the platform did not answer in time", may_have_arrived=True)
        except Exception:  # One adapter's bug must not end the daemon; the reply is kept for a person to look at.
            log.exception("delivery_crashed", channel=channel.name, key=row.key)
            await self._bury(row, "the channel failed with a bug; the log has it")
            return None
        await self._note(row, receipt)
        self.metrics.reply_finished(channel.name, DELIVERED)
        return None

    async def _note(self, row: OutboxRow, receipt: Receipt) -> None:
        """Write down that a row has arrived."""
        chat = _chat(row.message.address)
        self._sent.add(chat)
        try:
            delivered = MarkDelivered(key=row.key, receipt=receipt, at=self._now())
            await self.record(delivered, *self._sketches.done(row), patience=NOTED_WITHIN)
        finally:
            self._sent.discard(chat)

    async def _bury(self, row: OutboxRow, reason: str) -> None:
        self.metrics.reply_finished(row.message.address.channel, DEAD)
        log.error("message_undeliverable", channel=row.message.address.channel, key=row.key, reason=reason)
        await self.record(MarkDead(key=row.key, reason=reason), *self._sketches.done(row))

    async def record(self, *operations: Operation, patience: float = 0.0) -> None:
        """Write down what has happened; on a full disk, wait for room, since it cannot be undone."""
        await retry_while_full(partial(self._spool.commit, *operations, max_delay=patience), sleep=self._sleep)

    def _channel(self, message: Outbound) -> Channel | None:
        return self._channels.get((message.address.channel, message.address.account))


def _chat(address: Address) -> str:
    return f"{address.channel}:{address.account}:{address.kind}:{address.peer}:{address.thread}"
