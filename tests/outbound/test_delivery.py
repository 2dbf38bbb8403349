import asyncio
from collections.abc import Collection
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.contract import Address, Button, Channel, Outbound, OutboundKind, PeerKind, Receipt
from gateway.errors import AuthRejected, ChannelError, Transient, Undeliverable
from gateway.outbound import draft_stream
from gateway.outbound.delivery import GIVE_UP_AFTER, POSSIBLY_REPEATED
from gateway.spool import MarkSending, OutboxState, Spool, SpoolUnavailable
from gateway.spool.deletion import ERASED
from gateway.tracing import Span, Tracer, root_id
from tests.outbound.harness import ADDRESS, HELLO, Post, Time, Wire, posting
from tests.polling import until

TURN = "0123456789abcdef0123456789abcdef"


class DroppingRepeats(Wire):
    """Drops repeats, as a platform with a nonce does."""

    repeats_dropped_for = 300.0


class ShowingTranscript(Wire):
    """Shows the transcript, as the API does."""

    shows_transcript = True


async def test_waits_as_long_as_the_platform_asked(tmp_path: Path) -> None:
    time, wire = Time(), Wire(Transient("slow down", retry_after=17.0))
    async with posting(tmp_path, wire, time=time) as post:
        await post.say(HELLO, "k")
        await post.arrived()
        assert await post.states() == {}
    assert time.naps == [17.0]
    assert wire.tried == ["k", "k"]
    assert wire.texts == ["hello"]


async def test_a_platform_that_asks_for_no_pause_is_retried_with_growing_ones(tmp_path: Path) -> None:
    """A server that answers each callback with `Retry-After: 0` must not be called for ever, without a pause."""
    time, wire = Time(), Wire(*[Transient("again", retry_after=0.0)] * 10)
    async with posting(tmp_path, wire, time=time) as post:
        await post.say(HELLO, "k")
        await post.arrived()
    assert min(time.naps) > 0
    assert time.naps[-1] >= 30


async def test_every_attempt_to_deliver_a_reply_is_a_span(tmp_path: Path) -> None:
    spans: list[Span] = []
    wire = Wire(Transient("busy"), Undeliverable("blocked by the user"))
    async with posting(tmp_path, wire, tracer=Tracer(spans.append)) as post:
        await post.say(HELLO, TURN, turn=TURN)
        await post.arrived()
        await post.say(HELLO, "notice")  # It answers no message, so it belongs to no trace.
        await post.arrived()
    assert [(span.name, span.trace, span.parent) for span in spans] == [("delivery", TURN, root_id(TURN))] * 2
    assert [span.attributes["error.type"] for span in spans] == ["Transient", "Undeliverable"]


async def test_messages_wait_for_a_valid_token(tmp_path: Path) -> None:
    wire = Wire(AuthRejected("the token was revoked"))
    async with posting(tmp_path, wire) as post:
        await post.say(HELLO, "k")
        await post.arrived()
        assert await post.states() == {}
    assert wire.texts == ["hello"], "the message was lost or marked"


async def test_an_undeliverable_message_is_kept_and_not_retried(tmp_path: Path) -> None:
    wire = Wire(Undeliverable("blocked by the user"))
    async with posting(tmp_path, wire) as post:
        await post.say(HELLO, "k")
        await post.arrived()
        assert await post.states() == {"k": OutboxState.DEAD}
    assert wire.tried == ["k"]


async def test_bug_in_a_channel_costs_that_message_only(tmp_path: Path) -> None:
    wire = Wire(ZeroDivisionError())
    async with posting(tmp_path, wire) as post:
        await post.say(HELLO, "k")
        await post.say(HELLO, "l")
        await post.arrived()
        assert await post.states() == {"k": OutboxState.DEAD}
    assert wire.texts == ["hello"]


async def test_gives_up_after_a_day(tmp_path: Path) -> None:
    time, wire = Time(), Wire(*[Transient("down", retry_after=3_600.0)] * 100)
    async with posting(tmp_path, wire, time=time) as post:
        await post.say(HELLO, "k")
        await post.arrived()
        assert await post.states() == {"k": OutboxState.DEAD}
    assert sum(time.naps) > GIVE_UP_AFTER


async def test_a_reply_of_a_deleted_session_is_sent_without_its_text(tmp_path: Path) -> None:
    class Deleting(Wire):
        async def send(self, message: Outbound, *, key: str) -> Receipt:
            if len(self.tried) == 1:
                post.delivery.erase(["t1"])
            return await super().send(message, key=key)

    wire = Deleting(*[Transient("down")] * 2)
    async with posting(tmp_path, wire) as post:
        await post.say(HELLO, "k1", turn="t1")
        await post.say(replace(HELLO, text="other"), "k2", turn="t2")
        await post.arrived()
    assert wire.texts == [ERASED, "other"]


async def test_a_jumping_clock_does_not_make_messages_expire(tmp_path: Path) -> None:
    time = Time()

    class Jumping(Wire):
        async def send(self, message: Outbound, *, key: str) -> Receipt:
            time.now += timedelta(days=400 if len(self.tried) % 2 else -800)
            return await super().send(message, key=key)

    wire = Jumping(*[Transient("down")] * 5)
    async with posting(tmp_path, wire, time=time) as post:
        await post.say(HELLO, "k")
        await post.arrived()
        assert await post.states() == {}
    assert wire.texts == ["hello"]


async def test_a_send_of_unknown_outcome_is_marked_when_repeated(tmp_path: Path) -> None:
    wire = Wire(Transient("the answer was lost", may_have_arrived=True))
    async with posting(tmp_path, wire) as post:
        await post.say(HELLO, "k")
        await post.arrived()
    assert wire.texts == [f"{POSSIBLY_REPEATED}hello"]


async def test_a_send_that_a_crash_interrupted_is_marked_when_repeated(tmp_path: Path) -> None:
    time, wire = Time(), Wire()
    async with posting(tmp_path, time=time) as post:
        await post.spool.commit(*post.delivery.compose(HELLO, key="k"), MarkSending(key="k", at=time()))
    async with posting(tmp_path, wire, time=time) as post:
        for row in (await post.spool.recover()).outbox:
            post.delivery.enqueue(row)
        await post.arrived()
    assert wire.texts == [f"{POSSIBLY_REPEATED}hello"]


async def test_nothing_is_marked_if_the_platform_drops_repeats(tmp_path: Path) -> None:
    wire = DroppingRepeats(Transient("the answer was lost", may_have_arrived=True))
    async with posting(tmp_path, wire) as post:
        await post.say(HELLO, "k")
        await post.arrived()
        assert await post.states() == {}
    assert wire.texts == ["hello"]


async def test_repeats_are_dropped_only_for_a_while(tmp_path: Path) -> None:
    wire = DroppingRepeats(Transient("the answer was lost", may_have_arrived=True, retry_after=3600.0))
    async with posting(tmp_path, wire) as post:
        await post.say(HELLO, "k")
        await post.arrived()
    assert wire.texts == [f"{POSSIBLY_REPEATED}hello"]


async def test_a_marked_part_still_fits_the_limit(tmp_path: Path) -> None:
    wire = Wire(*[Transient("lost", may_have_arrived=True)] * 3)
    async with posting(tmp_path, wire) as post:
        await post.say(replace(HELLO, text="one two three four five six seven " * 5), "k")
        await post.arrived()
    assert all(len(text) <= 60 for text in wire.texts)


async def test_long_text_goes_in_parts_with_the_buttons_on_the_last(tmp_path: Path) -> None:
    class WithButtons(Wire):
        max_buttons = 1

    wire = WithButtons()
    buttons = (Button(label="1", command="/one"), Button(label="2", command="/two"))
    text = "one two three four five six seven eight nine ten eleven twelve"
    async with posting(tmp_path, wire) as post:
        await post.say(replace(HELLO, text=text, buttons=buttons), "k")
        await post.arrived()
    assert len(wire.texts) > 1
    assert " ".join(part.strip() for part in wire.texts) == text
    assert [message.buttons for _, message in wire.accepted] == [()] * (len(wire.texts) - 1) + [buttons[:1]]


async def test_a_broken_chat_delays_no_other_and_each_keeps_its_order(tmp_path: Path) -> None:
    class HalfBroken(Wire):
        async def send(self, message: Outbound, *, key: str) -> Receipt:
            if message.address.peer == "broken":
                await asyncio.Event().wait()
            receipt = await super().send(message, key=key)
            if key == "d":
                last.set()
            return receipt

    last = asyncio.Event()
    wire = HalfBroken()
    async with posting(tmp_path, wire) as post:
        await post.say(replace(HELLO, address=replace(ADDRESS, peer="broken")), "a")
        for key in ("b", "c", "d"):
            await post.say(HELLO, key)
        await last.wait()
        assert [key for key, _ in wire.accepted] == ["b", "c", "d"]
        post.delivery.chats.stop_all("")
        await post.arrived()
        assert await post.states() == {"a": OutboxState.SENDING}


async def test_a_message_waits_for_its_channel_to_be_enabled(tmp_path: Path) -> None:
    channels: dict[tuple[str, str], Channel] = {}
    wire = Wire()
    async with asyncio.timeout(60), await Spool.open(tmp_path) as spool, asyncio.TaskGroup() as tasks:
        post = Post(spool, channels, Time())
        post.delivery.chats.open(tasks)
        await post.say(HELLO, "k")
        await post.arrived()
        assert await post.states() == {"k": OutboxState.PENDING}
        channels["wire", "default"] = wire
        post.delivery.channels_changed()
        await post.arrived()
    assert wire.texts == ["hello"]


class DraftWire(Wire):
    draft_pace = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.drafts: asyncio.Queue[str] = asyncio.Queue()

    def can_draft(self, address: Address) -> bool:
        return address.kind is PeerKind.DIRECT

    async def draft(self, message: Outbound, *, key: str) -> None:
        self.drafts.put_nowait(f"{key}:{message.text}")


async def test_drafts_show_the_newest_text_and_end_with_the_turn(tmp_path: Path) -> None:
    wire = DraftWire()
    async with posting(tmp_path, wire) as post, post.delivery.stream_draft(HELLO, turn="t") as draft:
        draft.show(["a"])
        draft.show(["ab"])
        assert await wire.drafts.get() == "t:ab"
        draft.show(["abc"])
        assert await wire.drafts.get() == "t:abc"


class DraftsAndEdits(DraftWire):
    """Shows drafts in direct chats and edits messages in any."""

    edit_pace = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.edits: asyncio.Queue[str] = asyncio.Queue()
        self.has_sent = asyncio.Event()

    async def send(self, message: Outbound, *, key: str) -> Receipt:
        receipt = await super().send(message, key=key)
        self.has_sent.set()
        return receipt

    async def edit(self, receipt: Receipt, message: Outbound) -> None:
        self.edits.put_nowait(f"{receipt.message_id}:{message.text}")


async def test_without_drafts_a_message_is_edited(tmp_path: Path) -> None:
    wire = DraftsAndEdits()
    group = replace(HELLO, address=replace(ADDRESS, kind=PeerKind.GROUP))
    async with posting(tmp_path, wire) as post:
        async with post.delivery.stream_draft(HELLO, turn="t1") as draft:
            draft.show(["he"])
            assert await wire.drafts.get() == "t1:he"
        async with post.delivery.stream_draft(group, turn="t2") as draft:
            draft.show(["he"])
            await wire.has_sent.wait()
            draft.show(["hell"])
            assert await wire.edits.get() == "t2.draft:hell"
        await post.say(group, "t2", turn="t2")
        assert await wire.edits.get() == "t2.draft:hello"
        await post.arrived()
    assert wire.drafts.empty()
    assert wire.texts == ["he"]


async def test_a_failing_turn_raises_its_own_exception_while_streaming(tmp_path: Path) -> None:
    """The tasks of the stream must not turn it into an exception group."""
    async with posting(tmp_path, DraftWire()) as post:
        with pytest.raises(ValueError, match="the turn"):
            async with post.delivery.stream_draft(HELLO, turn="t"):
                raise ValueError("the turn")


async def test_an_answer_that_is_complete_at_once_starts_no_draft(tmp_path: Path) -> None:
    class SlowPace(EditableWire):
        edit_pace = 1.5

    wire = SlowPace()
    async with posting(tmp_path, wire) as post:
        async with post.delivery.stream_draft(HELLO, turn="t") as draft:
            draft.show(["hello"])
            await asyncio.sleep(0)
            assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("draft")]
        await post.say(HELLO, "t", turn="t")
        await post.arrived()
    assert wire.texts == ["hello"]
    assert wire.edits == []


async def test_a_bug_in_a_draft_does_not_cost_the_answer(tmp_path: Path) -> None:
    class Broken(DraftWire):
        async def draft(self, message: Outbound, *, key: str) -> None:
            await super().draft(message, key=key)
            raise ZeroDivisionError

    broken = Broken()
    async with posting(tmp_path, broken) as post:
        async with post.delivery.stream_draft(HELLO, turn="t") as draft:
            draft.show(["a"])
            await broken.drafts.get()
            await asyncio.sleep(0)
        await post.say(HELLO, "t", turn="t")
        await post.arrived()
    assert broken.texts == ["hello"]


class EditableWire(Wire):
    """Streams by editing one message."""

    edit_pace = 0.0

    def __init__(self, *failures: ChannelError) -> None:
        super().__init__(*failures)
        self.edits: list[tuple[str, str]] = []
        self.changed = asyncio.Event()

    async def edit(self, receipt: Receipt, message: Outbound) -> None:
        self.edits.append((receipt.message_id, message.text))
        self.changed.set()

    async def send(self, message: Outbound, *, key: str) -> Receipt:
        receipt = await super().send(message, key=key)
        self.changed.set()
        return receipt

    async def change(self) -> None:
        await self.changed.wait()
        self.changed.clear()


async def test_the_final_text_is_an_edit_of_the_streamed_message(tmp_path: Path) -> None:
    wire = EditableWire()
    async with posting(tmp_path, wire) as post:
        async with post.delivery.stream_draft(HELLO, turn="t") as draft:
            draft.show(["he"])
            await wire.change()
            draft.show(["hell"])
            await wire.change()
        await post.say(HELLO, "t", turn="t")
        await post.arrived()
        assert (await post.spool.recover()).drafts == {}
    assert wire.texts == ["he"]
    assert wire.edits == [("t.draft", "hell"), ("t.draft", "hello")]


async def _has_drafts(spool: Spool) -> bool:
    return any((await spool.recover()).drafts.values())


async def test_a_draft_from_before_a_crash_is_edited_to_the_final_text(tmp_path: Path) -> None:
    wire = EditableWire()
    async with posting(tmp_path, wire) as post, post.delivery.stream_draft(HELLO, turn="t") as draft:
        draft.show(["he"])
        await wire.change()
        await until(lambda: _has_drafts(post.spool))
    async with posting(tmp_path, wire) as post:
        post.delivery.restore_drafts((await post.spool.recover()).drafts)
        await post.say(HELLO, "t", turn="t")
        await post.arrived()
    assert wire.texts == ["he"]
    assert wire.edits == [("t.draft", "hello")]


class SlowEditableWire(EditableWire):
    """Confirms a message only when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = asyncio.Event()

    async def send(self, message: Outbound, *, key: str) -> Receipt:
        receipt = await super().send(message, key=key)
        await self.may_answer.wait()
        return receipt


async def test_an_answer_is_marked_if_a_crash_lost_the_receipt_of_its_draft(tmp_path: Path) -> None:
    """The id of the draft is unknown, so it may stay in the chat."""
    wire = SlowEditableWire()
    async with posting(tmp_path, wire) as post, post.delivery.stream_draft(HELLO, turn="t") as draft:
        draft.show(["he"])
        await wire.change()
        drafts = (await post.spool.recover()).drafts
        wire.may_answer.set()
    assert drafts == {"t": None}
    restarted = EditableWire()
    async with posting(tmp_path, restarted) as post:
        post.delivery.restore_drafts(drafts)
        async with post.delivery.stream_draft(HELLO, turn="t") as draft:
            draft.show(["he"])
            await restarted.change()
        await post.say(HELLO, "t", turn="t")
        await post.arrived()
        assert (await post.spool.recover()).drafts == {}
    assert restarted.edits == [("t.draft", f"{POSSIBLY_REPEATED}hello")]


class Tried(EditableWire):
    """Sets an event on every attempt to send."""

    def __init__(self, *failures: ChannelError) -> None:
        super().__init__(*failures)
        self.was_tried = asyncio.Event()

    async def send(self, message: Outbound, *, key: str) -> Receipt:
        self.was_tried.set()
        return await super().send(message, key=key)


async def test_an_answer_is_marked_if_the_outcome_of_its_draft_is_unknown(tmp_path: Path) -> None:
    """The draft may stay in the chat. A second draft beside it would make things worse."""
    wire = Tried(Transient("the answer was lost", may_have_arrived=True))
    async with posting(tmp_path, wire) as post:
        async with post.delivery.stream_draft(HELLO, turn="t") as draft:
            draft.show(["he"])
            await wire.was_tried.wait()
            for text in ("hel", "hell"):
                draft.show([text])
                await asyncio.sleep(0)
        await post.say(HELLO, "t", turn="t")
        await post.arrived()
        assert (await post.spool.recover()).drafts == {}
    assert wire.texts == [f"{POSSIBLY_REPEATED}hello"]


async def test_an_answer_is_not_marked_if_its_draft_was_rejected(tmp_path: Path) -> None:
    wire = Tried(Transient("slow down", retry_after=3.0))
    async with posting(tmp_path, wire) as post:
        async with post.delivery.stream_draft(HELLO, turn="t") as draft:
            draft.show(["he"])
            await wire.was_tried.wait()
        await post.say(HELLO, "t", turn="t")
        await post.arrived()
    assert wire.texts == ["hello"]


async def test_typing_pauses_as_long_as_the_platform_asks(tmp_path: Path) -> None:
    class Typist(Wire):
        async def show_typing(self, _address: Address) -> None:
            raise Transient("slow down", retry_after=30.0)

    time = Time()
    async with posting(tmp_path, Typist(), time=time) as post, post.delivery.stream_draft(HELLO, turn="t"):
        await time.has_slept.wait()
    assert set(time.naps) == {30.0}


async def test_an_answer_that_ends_during_its_first_draft_is_one_message(tmp_path: Path) -> None:
    wire = SlowEditableWire()
    async with posting(tmp_path, wire) as post:
        async with post.delivery.stream_draft(HELLO, turn="t") as draft:
            draft.show(["he"])
            await wire.change()
            asyncio.get_running_loop().call_soon(wire.may_answer.set)
        await post.say(HELLO, "t", turn="t")
        await post.arrived()
    assert wire.texts == ["he"]
    assert wire.edits == [("t.draft", "hello")]


async def test_a_streamed_message_waits_for_the_earlier_messages_of_its_chat(tmp_path: Path) -> None:
    """The next turn may begin while the parts of a long answer are still being sent."""
    wire, time = SlowEditableWire(), Time()
    long_one = replace(HELLO, text="hello " * 12)
    async with posting(tmp_path, wire, time=time) as post:
        await post.say(long_one, "k")
        await wire.change()
        async with post.delivery.stream_draft(HELLO, turn="t") as draft:
            draft.show(["he"])
            await time.has_slept.wait()
            wire.may_answer.set()
            while "t.draft" not in wire.tried:
                await wire.change()
    assert wire.tried == ["k", "k.1", "t.draft"]


class Halting(EditableWire):
    """Never finishes a send."""

    def __init__(self, *failures: ChannelError) -> None:
        super().__init__(*failures)
        self.is_sending = asyncio.Event()

    async def send(self, message: Outbound, *, key: str) -> Receipt:
        receipt = await super().send(message, key=key)
        self.is_sending.set()
        await asyncio.Event().wait()
        return receipt


async def test_edits_pause_as_long_as_the_platform_asks(tmp_path: Path) -> None:
    time, wire = Time(), EditableWire(Transient("slow down", retry_after=17.0))
    async with posting(tmp_path, wire, time=time) as post, post.delivery.stream_draft(HELLO, turn="t") as draft:
        draft.show(["he"])
        await time.has_slept.wait()
    assert time.naps == [17.0]


async def test_a_draft_is_edited_even_if_its_receipt_could_not_be_stored(tmp_path: Path) -> None:
    """Sending another one would show it twice."""

    class FullStore(draft_stream.DraftStore):
        async def keep(self, key: str, receipt: Receipt | None) -> None:
            self.receipts[key] = receipt
            if receipt is not None:
                raise SpoolUnavailable("The disk is full.")

    wire, time = EditableWire(), Time()
    spool = await Spool.open(tmp_path)
    stream = draft_stream.DraftStream(
        channel=wire,
        template=HELLO,
        turn="t",
        store=FullStore(spool, time),
        is_clear=lambda: True,
        sleep=time.sleep,
        part_size=60,
    )
    async with asyncio.timeout(60), spool, stream as draft:
        draft.show(["he"])
        await wire.change()
        draft.show(["hell"])
        await wire.change()
    assert wire.texts == ["he"]
    assert wire.edits == [("t.draft", "hell")]


async def test_a_retried_draft_also_waits_for_the_earlier_messages(tmp_path: Path) -> None:
    time, wire = Time(), Halting(Transient("slow down", retry_after=17.0))
    async with posting(tmp_path, wire, time=time) as post, post.delivery.stream_draft(HELLO, turn="t") as draft:
        draft.show(["he"])
        await time.has_slept.wait()
        for _ in range(5):  # By then it waits for the next text.
            await asyncio.sleep(0)
        await post.say(HELLO, "k")
        await wire.is_sending.wait()
        draft.show(["hel"])
        while draft_stream.CLEAR_CHECK_INTERVAL not in time.naps:
            time.has_slept.clear()
            await time.has_slept.wait()
        assert wire.tried == ["t.draft", "k"]


async def test_a_recovered_message_is_marked_once_the_platform_has_forgotten_its_key(tmp_path: Path) -> None:
    """If the platform drops repeats, the outbox does not say whether a message was sent."""
    time, wire = Time(), DroppingRepeats()
    async with posting(tmp_path, wire, time=time) as post:
        await post.spool.commit(*post.delivery.compose(HELLO, key="k"), *post.delivery.compose(HELLO, key="l"))
        early, late = (await post.spool.recover()).outbox
        post.delivery.recover(early)
        await post.arrived()
        time.now += timedelta(hours=1)
        post.delivery.recover(late)
        await post.arrived()
    assert wire.texts == ["hello", f"{POSSIBLY_REPEATED}hello"]


async def test_repeats_are_marked_even_if_the_clock_was_set_back(tmp_path: Path) -> None:
    class SetBack(Time):
        async def sleep(self, seconds: float) -> None:
            await super().sleep(seconds)
            self.now -= timedelta(hours=1)

    time, wire = SetBack(), Wire(Transient("the answer was lost", may_have_arrived=True))
    async with posting(tmp_path, wire, time=time) as post:
        await post.say(HELLO, "k")
        await post.arrived()
    assert wire.texts == [f"{POSSIBLY_REPEATED}hello"]


class Searchable(Wire):
    """Can be searched for the text in `shows`, unless it is `blind`."""

    def __init__(self, *failures: Exception, blind: bool = False) -> None:
        super().__init__(*failures)
        self.asked: list[set[str]] = []
        self.shows = ""
        self._is_blind = blind

    async def look_back(self, message: Outbound, *, since: datetime, known: Collection[str]) -> Receipt | None:
        self.asked.append(set(known))
        assert since < Time().now
        if self._is_blind:
            raise Undeliverable("the history is closed")
        return Receipt(message_id="found") if message.text == self.shows else None


@pytest.mark.parametrize(
    ("shows", "blind", "heard"),
    [("hello", False, []), ("", False, ["hello"]), ("", True, [f"{POSSIBLY_REPEATED}hello"])],
)
async def test_a_send_of_unknown_outcome_is_searched_in_the_chat(
    tmp_path: Path, shows: str, heard: list[str], *, blind: bool
) -> None:
    wire = Searchable(Transient("the answer was lost", may_have_arrived=True), blind=blind)
    wire.shows = shows
    async with posting(tmp_path, wire) as post:
        await post.say(HELLO, "k")
        await post.arrived()
        assert await post.states() == {}
    assert wire.texts == heard


async def test_the_search_excludes_messages_that_are_known(tmp_path: Path) -> None:
    wire = Searchable()
    async with posting(tmp_path, wire) as post:
        await post.say(HELLO, "k")
        await post.arrived()
        wire.failures.append(Transient("the answer was lost", may_have_arrived=True))
        await post.say(HELLO, "l")
        await post.arrived()
    assert [len(known) for known in wire.asked] == [1]


class Slow(Wire):
    """Accepts a message only when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.may_accept, self.has_accepted = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def send(self, message: Outbound, *, key: str) -> Receipt:
        self.is_asked.set()
        await self.may_accept.wait()
        self.has_accepted.set()
        return await super().send(message, key=key)


async def test_a_message_is_committed_as_being_sent_if_it_is_next_in_its_chat(tmp_path: Path) -> None:
    """That saves a commit, even while the delivery before it is still being committed."""
    slow = Slow()
    async with posting(tmp_path, slow) as post:
        await post.say(HELLO, "a")
        await slow.is_asked.wait()
        assert [part.is_sending for part in post.delivery.compose(HELLO, key="b")] == [False]
        slow.may_accept.set()
        await slow.has_accepted.wait()
        assert [part.is_sending for part in post.delivery.compose(HELLO, key="b")] == [True]
        await post.say(HELLO, "b")
        await post.arrived()
    assert slow.tried == ["a", "b"]


async def test_a_channel_that_shows_the_transcript_is_sent_notices_only(tmp_path: Path) -> None:
    kinds = (OutboundKind.REPLY, OutboundKind.NOTICE)
    async with posting(tmp_path, ShowingTranscript()) as post:
        parts = post.delivery.compose_all([replace(HELLO, kind=kind) for kind in kinds], turn="t", scope="")
    assert [part.message.kind for part in parts] == [OutboundKind.NOTICE]
