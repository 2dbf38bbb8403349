import asyncio
from datetime import UTC, datetime

from gateway.contract import Address, Deliver, Inbound, Outbound, PeerKind, Receipt, Sender, TextLimit
from gateway.errors import ChannelError, Transient, Undeliverable
from gateway.outbound.reactions import WaitingReactions

QUESTION = Inbound(
    address=Address(channel="wire", kind=PeerKind.DIRECT, peer="ada"),
    sender=Sender(id="ada"),
    event_id="1",
    text="hello",
    sent_at=datetime(2026, 3, 1, tzinfo=UTC),
    message_id="1",
)


class Wire:
    """Shows a sign at once, and takes it off once it has failed as scripted."""

    name = "wire"
    account = "default"
    text_limit = TextLimit(size=100)

    def __init__(self, *failures: ChannelError, doubt: Transient | None = None) -> None:
        self.failures = list(failures)
        self.doubt = doubt
        self.naps: list[float] = []
        self.shown = asyncio.Event()
        self.tried = 0

    async def run(self, _deliver: Deliver) -> None:
        await asyncio.Event().wait()

    async def send(self, _message: Outbound, *, key: str) -> Receipt:
        return Receipt(message_id=key)

    async def react(self, _address: Address, _message_id: str, _emoji: str) -> None:
        self.shown.set()
        if self.doubt is not None:
            raise self.doubt

    async def unreact(self, _address: Address, _message_id: str, _emoji: str) -> None:
        self.tried += 1
        if self.failures:
            raise self.failures.pop(0)

    async def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)


async def shown_and_over(wire: Wire) -> None:
    reactions = WaitingReactions({("wire", "default"): wire}, show_after=0.0, sleep=wire.sleep)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        reactions.lanes.open(tasks)
        reactions.add("t", QUESTION)
        await wire.shown.wait()
        await reactions.lanes.drained()
        reactions.remove("t")
        await reactions.lanes.drained()


async def test_removing_a_reaction_is_retried() -> None:
    wire = Wire(Transient("slow down", retry_after=17.0), Transient("away"))
    await shown_and_over(wire)
    assert wire.naps == [17.0, 5.0]
    assert wire.tried == 3


async def test_removing_a_reaction_is_given_up_after_some_attempts() -> None:
    gone, away = Wire(Undeliverable("the message is gone")), Wire(*[Transient("away")] * 9)
    await shown_and_over(gone)
    await shown_and_over(away)
    assert (gone.tried, away.tried) == (1, 4)


async def test_a_reaction_that_may_have_been_shown_is_removed() -> None:
    unknown = Wire(doubt=Transient("the answer was lost", may_have_arrived=True))
    refused = Wire(doubt=Transient("slow down"))
    await shown_and_over(unknown)
    await shown_and_over(refused)
    assert (unknown.tried, refused.tried) == (1, 0)
