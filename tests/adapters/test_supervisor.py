import asyncio

from structlog.testing import capture_logs

from gateway.adapters.supervisor import BACKOFF_RESET_AFTER, ChannelPulse, ChannelState, supervise
from gateway.contract import Deliver, Inbound, Outbound, Receipt, TextLimit, Verdict
from gateway.errors import AuthRejected, NotAccepted, Transient


class Scripted:
    """A channel whose runs end as scripted, and then wait to be cancelled."""

    name = "scripted"
    account = "default"
    text_limit = TextLimit(size=100)

    def __init__(self, pulse: ChannelPulse, *endings: Exception | None) -> None:
        self.pulse = pulse
        self.endings = list(endings)
        self.runs = 0
        self.settled = asyncio.Event()

    async def run(self, _deliver: Deliver) -> None:
        self.runs += 1
        if self.endings:
            ending = self.endings.pop(0)
            if ending is not None:
                raise ending
            return
        self.pulse.up()
        self.settled.set()
        await asyncio.Event().wait()

    async def send(self, _message: Outbound, *, key: str) -> Receipt:
        return Receipt(message_id=key)


async def deliver(_inbound: Inbound) -> Verdict:
    return Verdict.ACCEPTED


class Clock:
    """Time passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.naps: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        await asyncio.sleep(0)


async def until_settled(channel: Scripted, pulse: ChannelPulse, clock: Clock) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(supervise(channel, deliver, pulse, sleep=clock.sleep, clock=clock))
        await channel.settled.wait()
        task.cancel()


async def test_a_failed_channel_is_restarted_with_growing_delays() -> None:
    pulse, clock = ChannelPulse("scripted", "default"), Clock()
    channel = Scripted(pulse, *[Transient("network is down")] * 5)
    await until_settled(channel, pulse, clock)
    assert channel.runs == 6
    assert pulse.state is ChannelState.UP
    assert clock.naps[-1] > clock.naps[0]


async def test_waits_as_long_as_the_platform_asked() -> None:
    pulse, clock = ChannelPulse("scripted", "default"), Clock()
    await until_settled(Scripted(pulse, Transient("flood", retry_after=33.0)), pulse, clock)
    assert clock.naps == [33.0]


async def test_a_message_that_the_core_cannot_accept_is_no_failure_of_the_channel() -> None:
    """A channel may let the error escape: it is restarted, and the operator is not told that the platform is lost."""
    pulse, clock = ChannelPulse("scripted", "default"), Clock()
    channel = Scripted(pulse, NotAccepted("Gatehouse is shutting down.", retry_after=7.0))
    with capture_logs() as logs:
        await until_settled(channel, pulse, clock)
    assert clock.naps == [7.0]
    assert [entry["event"] for entry in logs] == ["message_not_accepted", "channel_up"]


async def test_a_channel_that_crashes_or_returns_is_restarted_too() -> None:
    pulse, clock = ChannelPulse("scripted", "default"), Clock()
    channel = Scripted(pulse, ZeroDivisionError(), None)
    await until_settled(channel, pulse, clock)
    assert channel.runs == 3


async def test_a_channel_whose_task_group_fails_is_restarted() -> None:
    """Before Python 3.13 a task group that fails leaves the task around it looking as if it were cancelled."""

    class Grouped(Scripted):
        async def run(self, deliver: Deliver) -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(super().run(deliver), name="part")

    pulse, clock = ChannelPulse("scripted", "default"), Clock()
    channel = Grouped(pulse, ZeroDivisionError(), Transient("gone"))
    await until_settled(channel, pulse, clock)
    assert channel.runs == 3


async def test_a_channel_whose_token_is_rejected_is_retired() -> None:
    pulse, clock = ChannelPulse("scripted", "default"), Clock()
    channel = Scripted(pulse, AuthRejected("the token was revoked"))
    async with asyncio.timeout(60):
        await supervise(channel, deliver, pulse, sleep=clock.sleep, clock=clock)
    assert channel.runs == 1
    assert pulse.state is ChannelState.RETIRED
    assert pulse.reason == "the token was revoked"


async def test_a_channel_that_ran_for_long_starts_its_backoff_again() -> None:
    pulse, clock = ChannelPulse("scripted", "default"), Clock()

    class LongLived(Scripted):
        async def run(self, deliver: Deliver) -> None:
            if self.runs == 5:
                clock.now += BACKOFF_RESET_AFTER + 1
            await super().run(deliver)

    await until_settled(LongLived(pulse, *[Transient("gone")] * 6), pulse, clock)
    assert clock.naps[5] <= 0.5 < clock.naps[4]


async def test_a_channel_that_fails_during_its_cancellation_is_not_restarted() -> None:
    class Clumsy(Scripted):
        async def run(self, deliver: Deliver) -> None:
            try:
                await super().run(deliver)
            finally:
                raise Transient("the disk is full")

    pulse = ChannelPulse("scripted", "default")
    clumsy = Clumsy(pulse)
    await until_settled(clumsy, pulse, Clock())
    assert clumsy.runs == 1
