"""Delivery: sends the messages in the outbox, in order for each chat, and retries with backoff.

The outbox itself is a table of the spool: see `AddToOutbox` and the operations after it.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import structlog
from msgspec.structs import replace

from gateway.aio import backoff_delays
from gateway.bounded import BoundedDict
from gateway.contract import Address, Channel, Enclosure, Outbound, OutboundKind, Receipt, TextLimit
from gateway.contract.abilities import abilities_of
from gateway.errors import AuthRejected, HeldElsewhere, Refused, Transient, Undeliverable
from gateway.lanes import Lanes
from gateway.metrics import DEAD, DELIVERED, Metrics
from gateway.outbound.delivery_health import DeliveryHealth
from gateway.outbound.draft_stream import DraftStore, DraftStream, part_key
from gateway.shards import shard_of
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
    WithdrawMessage,
)
from gateway.spool.deletion import without_text
from gateway.spool.spool import retry_while_unavailable
from gateway.text import split
from gateway.text.plain import in_bytes
from gateway.tracing import NO_SPAN, NoSpan, OpenSpan, Tracer

log = structlog.get_logger()

POSSIBLY_REPEATED = "(possibly repeated)\n"
"""Prefix of a message whose first send had an unknown outcome. Every part leaves room for it."""

MAX_CLOCK_SKEW = timedelta(minutes=15)
"""How far the platform's clock may be behind ours."""
KNOWN_RECEIPTS_AGE = timedelta(days=1)
"""How far back receipts are read, to tell a message from an earlier one with the same text."""

SEND_TIMEOUT = 60.0
FILE_TIMEOUT = 600.0
MAX_ERASED = 10_000
COMMIT_DELAY = 0.002
"""Seconds that the commit of a delivery may wait to share its transaction with another one."""
GIVE_UP_AFTER = 24 * 3600.0
"""Seconds of retries after which a message is set aside. `gatehouse spool retry` sends it again."""


def part_size(limit: TextLimit) -> int:
    """Return how long a part may be."""
    return limit.size - limit.measure(POSSIBLY_REPEATED)


def split_into_parts(
    message: Outbound,
    *,
    channel: Channel | None,
    key: str,
    turn: str | None,
    files: Sequence[Enclosure],
    at: datetime,
    is_next: bool,
    scope: str = "",
) -> list[AddToOutbox]:
    """Split a message into parts that its channel can send. The last part has the buttons; the files follow it.

    A message with a text and a `file` becomes both, one after the other.
    If the message `is_next` in its chat, its first part is stored as being sent already, which saves a commit. A
    channel that is not enabled (None) has no known limits, so the message stays whole.
    """
    if message.file is not None:
        files, message = [message.file, *files], replace(message, file=None)
    texts, buttons, is_marked = [message.text], message.buttons, False
    if channel is not None:
        can = abilities_of(channel)
        limit = can.notice_limit if message.kind is OutboundKind.NOTICE else channel.text_limit
        max_file = can.sends_files.max_file_bytes if can.sends_files is not None else -1
        if unsendable := [file for file in files if file.size > max_file]:
            notes = (f"(I have a file for you, but can't send it here: {_described(file)})" for file in unsendable)
            message = replace(message, text="\n\n".join(filter(None, [message.text, *notes])))
            files = [file for file in files if file.size <= max_file]
        texts = split(message.text, part_size(limit), limit.measure)
        buttons = message.buttons[: can.max_buttons]
        is_marked = is_next and not can.repeats_dropped_for
    parts = []
    for number, text in enumerate(texts):
        part_buttons = buttons if number == len(texts) - 1 else ()
        is_whole = text == message.text and part_buttons == message.buttons
        parts.append(
            AddToOutbox(
                key=part_key(key, number),
                turn=turn,
                message=message if is_whole else replace(message, text=text, buttons=part_buttons),
                at=at,
                is_sending=is_marked and number == 0,
                scope=scope,
            )
        )
    for number, file in enumerate(files, start=1):
        bare = replace(message, text="", buttons=(), restored=0, file=file)
        parts.append(AddToOutbox(key=f"{key}.file{number}", turn=turn, message=bare, at=at, scope=scope))
    return parts


class Delivery:
    """To send a message, `compose` its parts, commit them to the spool, and then `post` them.

    `may_receive` is checked before a message is composed and before each send, so that a person who has lost access
    gets nothing more.
    """

    def __init__(
        self,
        channels: Mapping[tuple[str, str], Channel],
        spool: Spool,
        *,
        now: Callable[[], datetime],
        file_path: Callable[[str], Awaitable[Path]],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        metrics: Metrics | None = None,
        health: DeliveryHealth | None = None,
        may_receive: Callable[[Outbound], bool] = lambda _: True,
        max_parts: Callable[[Address], int] = lambda _: 0,
        tracer: Tracer | None = None,
    ) -> None:
        self._channels = channels
        self._spool = spool
        self._now = now
        self._file_path = file_path
        self._sleep = sleep
        self._metrics = metrics or Metrics()
        self.health = health or DeliveryHealth()
        self._may_receive = may_receive
        self._max_parts = max_parts
        self._tracer = tracer
        self._drafts = DraftStore(spool, now)
        self._without_channel: list[OutboxRow] = []
        """Rows that wait for their channel to be enabled."""
        self._marked: set[str] = set()
        """Keys of parts that were committed as being sent, and have not been sent yet."""
        self._committing: set[str] = set()
        """Chats whose last message has arrived, while that is being committed."""
        self._erased = BoundedDict[str, None](MAX_ERASED)
        """Turns of deleted sessions whose replies were not delivered yet."""
        self.chats: Lanes[OutboxRow] = Lanes(self._deliver, name="chat")

    def compose(
        self, message: Outbound, *, key: str, turn: str | None = None, files: Sequence[Enclosure] = (), scope: str = ""
    ) -> list[AddToOutbox]:
        """Return the parts in which `message` is sent, with the files after the text. None if it must not be sent.

        In a cluster, the owner of `scope` sends them; without a scope, this node or the next owner of its home shard.
        """
        if not self._may_receive(message):
            return []
        return split_into_parts(
            message,
            channel=self._channel(message),
            key=key,
            turn=turn,
            files=files,
            at=self._now(),
            is_next=self._is_clear(_chat_key(message.address)),
            scope="" if self._spool.shards is None else scope or self._spool.home,
        )

    def compose_all(
        self, messages: Sequence[Outbound], *, turn: str, scope: str, files: Sequence[Enclosure] = ()
    ) -> list[AddToOutbox]:
        """Compose the answer of `turn` to each of its chats. The first one has the draft's key, and replaces it.

        There are no parts for a channel that shows the transcript, which has the answer.
        """
        parts: list[AddToOutbox] = []
        for number, message in enumerate(messages):
            channel = self._channel(message)
            if message.kind is OutboundKind.REPLY and channel is not None and abilities_of(channel).shows_transcript:
                continue
            key = f"{turn}.chat{number}" if number else turn
            parts += self.compose(message, key=key, turn=turn, files=files, scope=scope)
        return parts

    def fits(self, message: Outbound) -> bool:
        """Return whether the text fits into one message of its channel."""
        channel = self._channel(message)
        return channel is None or channel.text_limit.measure(message.text) <= channel.text_limit.size

    def forget_drafts(self, turn: str, parts: Sequence[AddToOutbox]) -> list[Operation]:
        """Forget the drafts of a turn that none of its `parts` replaces. Return the operations for that."""
        if turn not in self._drafts.receipts:  # The first draft has the key of the turn, so there are none.
            return []
        replaced = {part.key for part in parts}
        unused = [key for key in self._drafts.keys_of(turn) if key not in replaced]
        return [operation for key in unused for operation in self._drafts.drop(key)]

    def streamed_parts(self, turn: str) -> int:
        """Return how many messages of the answer of `turn` are in its chat already."""
        return len(self._drafts.keys_of(turn))

    def _is_clear(self, chat: str) -> bool:
        """Whether every earlier message of the chat has been sent, so that a new one is sent next."""
        return not self.chats.is_busy(chat) or (chat in self._committing and not self.chats.has_waiting(chat))

    def post(self, parts: Sequence[AddToOutbox]) -> None:
        """Deliver parts that have been committed, after the earlier messages of their chat."""
        for part in parts:
            if part.is_sending:
                self._marked.add(part.key)
            self.enqueue(
                OutboxRow(
                    key=part.key,
                    turn=part.turn,
                    state=OutboxState.PENDING,
                    message=part.message,
                    created_at=part.at,
                    sending_at=None,
                    attempts=0,
                    reason="",
                    scope=part.scope,
                )
            )

    def enqueue(self, row: OutboxRow) -> None:
        """Deliver a row of the outbox, new or revived by a person."""
        self.chats.put(_chat_key(row.message.address), row)

    def erase(self, turns: Iterable[str]) -> None:
        """Send the replies of these turns without their text: their session was deleted, also from the outbox."""
        for turn in turns:
            self._erased[turn] = None

    def recover(self, row: OutboxRow) -> None:
        """Deliver a row that was in the outbox when the daemon started."""
        channel = self._channel(row.message)
        # Where the platform drops repeats, sends are not marked in the outbox: this one may have been sent.
        if channel is not None and abilities_of(channel).repeats_dropped_for > 0:
            row = replace(row, state=OutboxState.SENDING)
        self.enqueue(row)

    def restore_drafts(self, drafts: Mapping[str, Receipt | None]) -> None:
        """Load the drafts that were in their chats when the daemon stopped."""
        self._drafts.restore(drafts)

    def channels_changed(self) -> None:
        """Deliver the messages that waited for a channel to be enabled."""
        waiting, self._without_channel = self._without_channel, []
        for row in waiting:
            self.enqueue(row)

    def forget(self, shards: Collection[int]) -> None:
        """Forget messages that wait for a channel, in shards that another node of the cluster owns now."""
        self._without_channel = [row for row in self._without_channel if shard_of(row.scope) not in shards]

    def stream_draft(self, template: Outbound, *, turn: str, is_hidden: bool = False) -> DraftStream:
        """Return the stream that shows the answer of `turn` while it is being written, unless `is_hidden`."""
        channel = self._channel(template) if not is_hidden else None
        return DraftStream(
            channel=channel,
            template=template,
            turn=turn,
            store=self._drafts,
            is_clear=partial(self._is_clear, _chat_key(template.address)),
            sleep=self._sleep,
            part_size=part_size(channel.text_limit) if channel is not None else 0,
            max_parts=partial(self._max_parts, template.address),
        )

    def busy_scopes(self) -> set[str]:
        """Return the scopes with messages that wait or are being sent."""
        return {row.scope for row in self.chats.items()}

    async def _deliver(self, row: OutboxRow) -> None:
        """Send a row until it has arrived, cannot arrive, or is too old. If cancelled, it stays in the outbox."""
        may_have_arrived = row.state is OutboxState.SENDING
        waited = 0.0  # Counted instead of read off the clock, which may jump.
        delays = backoff_delays()
        has_failed = False
        try:
            while True:
                channel = self._channel(row.message)
                if channel is None:
                    self._without_channel.append(row)
                    return
                if not self._may_receive(row.message):
                    log.info("message_withdrawn", channel=channel.name, key=row.key)
                    self._marked.discard(row.key)
                    await self._commit(row, WithdrawMessage(key=row.key), *self._drafts.drop(row.key))
                    return
                if row.turn in self._erased:
                    row = replace(row, message=without_text(row.message))
                begun = self.health.clock()
                tracer = self._tracer if row.turn is not None else None
                with NO_SPAN if tracer is None else tracer.delivery(row.turn or "", channel.name) as span:
                    failure = await self._attempt(channel, row, span, may_have_arrived=may_have_arrived)
                    if failure is not None:
                        span.fail(type(failure).__name__)
                if failure is None:
                    self.health.answered(row.message.address)
                    return
                has_failed = True
                self._metrics.send_failures[(channel.name,)] += 1
                is_alone = abilities_of(channel).sends_to_many_hosts
                self.health.failed(row.key, row.message.address, str(failure), since=begun, is_alone=is_alone)
                may_have_arrived = may_have_arrived or failure.may_have_arrived
                if waited > GIVE_UP_AFTER:
                    await self._mark_dead(row, f"gave up after a day: {failure}")
                    return
                # Never sooner than without the platform's wish: one that asks for no pause would be called for ever.
                pause = max(next(delays), failure.retry_after or 0.0)
                await self._sleep(pause)
                waited += pause
        except HeldElsewhere:  # Another node of the cluster has taken over the outbox of this scope.
            log.info("message_left_to_another_node", key=row.key)
        finally:
            if has_failed:
                self.health.forget(row.key)

    async def _attempt(
        self, channel: Channel, row: OutboxRow, span: OpenSpan | NoSpan, *, may_have_arrived: bool
    ) -> Transient | None:
        """Send a row once and commit the outcome. Return the reason to try again, if any."""
        window = abilities_of(channel).repeats_dropped_for
        age = (self._now() - row.created_at).total_seconds()
        # A negative age means that the clock was set back, so the platform may have forgotten the key.
        repeats_are_dropped = window == math.inf or 0 <= age < window
        # 1. Commit that the row is being sent, unless `post` found that committed already.
        # 2. Send it.
        # 3. Commit the outcome.
        # After a crash between 2 and 3 the row is found as being sent. It may have arrived, so a repeat is marked.
        # If the platform drops repeats, step 1 is not needed: a second send with the same key shows nothing new.
        if row.key in self._marked:
            self._marked.discard(row.key)
        elif not repeats_are_dropped:
            await self._commit(row, MarkSending(key=row.key, at=self._now()))
        if self._spool.safe_seconds_left <= 0:  # The next owner may be sending it.
            raise HeldElsewhere(row.scope)
        if self._spool.shards is not None:  # Not every send is marked before, so no commit may have checked it.
            self._spool.shards.require(row.scope)
        try:
            async with asyncio.timeout(SEND_TIMEOUT if row.message.file is None else FILE_TIMEOUT):
                receipt = await self._send(channel, row, may_repeat=may_have_arrived and not repeats_are_dropped)
        except Undeliverable as refusal:
            span.fail(type(refusal).__name__)
            await self._mark_dead(row, str(refusal))
            return None
        except (Transient, AuthRejected) as error:
            # After a rejected token the message waits: the supervisor retires the channel for the same error.
            failure = error if isinstance(error, Transient) else Transient(str(error))
            if not (failure.may_have_arrived or may_have_arrived or repeats_are_dropped):
                await self._commit(row, RetryLater(key=row.key, reason=str(failure)))
            return failure
        except TimeoutError:
            return Transient("the platform didn't answer in time", may_have_arrived=True)
        except Exception as crash:  # One channel's bug must not end the daemon. A person can look at the message.
            span.fail(type(crash).__name__)
            log.exception("delivery_crashed", channel=channel.name, key=row.key)
            await self._mark_dead(row, "the channel failed because of a bug; see the log")
            return None
        chat = _chat_key(row.message.address)
        self._committing.add(chat)
        try:
            delivered = MarkDelivered(key=row.key, receipt=receipt, at=self._now())
            await self._commit(row, delivered, *self._drafts.drop(row.key), delay=COMMIT_DELAY)
        finally:
            self._committing.discard(chat)
        self._metrics.reply_finished(channel.name, DELIVERED)
        return None

    async def _send(self, channel: Channel, row: OutboxRow, *, may_repeat: bool) -> Receipt:
        """Send a row, or edit its draft to the final text. Propagates channel errors; the caller decides on retries.

        If it `may_repeat` an earlier send, look for that one in the chat first, and mark the message if unsure.
        """
        can, message, draft = abilities_of(channel), row.message, self._drafts.receipts.get(row.key)
        # A draft of unknown id may stay in the chat, unless the same key makes the platform replace it.
        if row.key in self._drafts.lost and not can.repeats_dropped_for:
            message = replace(message, text=POSSIBLY_REPEATED + message.text)
        if draft is not None and can.edits is not None:
            if self._drafts.texts.get(row.key) == message.text and not (message.buttons or message.is_failure):
                return draft  # A message that was finished while the answer was still being written.
            try:
                await can.edits.edit(draft, message)
            except Undeliverable:
                pass  # The draft was deleted, or is too old to be edited.
            else:
                return draft
        if may_repeat:
            is_sure = can.back is not None and message.file is None
            if can.back is not None and message.file is None:
                known = await self._spool.delivered_ids(row.created_at - KNOWN_RECEIPTS_AGE)
                since = min(row.created_at, self._now()) - MAX_CLOCK_SKEW
                try:
                    found = await can.back.look_back(row.message, since=since, known=known)
                except Undeliverable:  # The platform cannot tell.
                    is_sure = False
                else:
                    if found is not None:
                        return found
            if not is_sure:
                message = replace(message, text=POSSIBLY_REPEATED + row.message.text)
        if message.file is None:
            return await channel.send(message, key=row.key)
        reason = "files can't be sent here"
        if can.sends_files is not None:
            try:
                return await can.sends_files.send_file(message, await self._file_path(message.file.ref), key=row.key)
            except (Undeliverable, Refused) as refusal:
                reason = str(refusal)
        log.warning("file_send_failed", channel=channel.name, key=row.key, reason=reason)
        text = f"{message.text}(I couldn't send the file {_described(message.file)}: {reason})"
        return await channel.send(replace(message, text=text, file=None), key=row.key)

    async def _mark_dead(self, row: OutboxRow, reason: str) -> None:
        self._metrics.reply_finished(row.message.address.channel, DEAD)
        log.error("message_undeliverable", channel=row.message.address.channel, key=row.key, reason=reason)
        await self._commit(row, MarkDead(key=row.key, reason=reason), *self._drafts.drop(row.key))

    async def _commit(self, row: OutboxRow, *operations: Operation, delay: float = 0.0) -> None:
        """Commit the outcome of a send. While nothing can be stored, wait: a send cannot be undone."""
        commit = partial(self._spool.commit, *operations, scope=row.scope or None, max_delay=delay)
        await retry_while_unavailable(commit, sleep=self._sleep)

    def _channel(self, message: Outbound) -> Channel | None:
        return self._channels.get((message.address.channel, message.address.account))


def _chat_key(address: Address) -> str:
    return f"{address.channel}:{address.account}:{address.kind}:{address.peer}:{address.thread}"


def _described(file: Enclosure) -> str:
    return f"{file.name}, {in_bytes(file.size)}"
