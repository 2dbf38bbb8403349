"""Delivery health: an outage is reported while it lasts, and logged once at its start and once at its end."""

from functools import partial
from pathlib import Path

from structlog.testing import capture_logs

from gateway.contract import Address, PeerKind
from gateway.errors import Transient, Undeliverable
from gateway.outbound.delivery_health import LATE_AFTER, OUTAGE_AFTER, DeliveryHealth
from tests.outbound.harness import ADDRESS, HELLO, Time, Wire, posting

OTHER_CHANNEL = Address(channel="other", kind=PeerKind.DIRECT, peer="ada")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def failing(health: DeliveryHealth, clock: Clock, *, seconds: float, key: str = "reply") -> None:
    """Fail every ten seconds, for so many seconds."""
    end = clock.now + seconds
    while clock.now <= end:
        health.failed(key, ADDRESS, "Bad Gateway", since=clock.now)
        clock.now += 10


def test_a_channel_that_cannot_send_is_reported_until_its_platform_answers() -> None:
    clock = Clock()
    health = DeliveryHealth(clock)
    with capture_logs() as logs:
        failing(health, clock, seconds=OUTAGE_AFTER - 20)
        assert not list(health.outages()), "A few seconds are no outage."
        failing(health, clock, seconds=600)
        (outage,) = health.outages()
        assert (outage.channel, outage.account, outage.reason, outage.chats) == ("wire", "default", "Bad Gateway", 1)
        assert outage.seconds > 600
        health.answered(OTHER_CHANNEL)
        assert list(health.outages())
        health.answered(ADDRESS)
        health.forget("reply")
        assert not list(health.outages())
    assert [line["event"] for line in logs] == ["delivery_interrupted", "delivery_resumed"]


def test_a_chat_that_cannot_be_reached_is_no_outage_of_its_channel() -> None:
    clock = Clock()
    health = DeliveryHealth(clock)
    with capture_logs() as logs:
        for _ in range(50):
            failing(health, clock, seconds=0)
            health.answered(ADDRESS)
            assert not list(health.outages())
        assert clock.now - 1000 > LATE_AFTER
        assert health.late() == 1
        health.forget("reply")
        assert health.late() == 0
    assert [line["event"] for line in logs] == ["reply_delayed"]


def test_a_send_that_hung_counts_from_its_start() -> None:
    clock = Clock()
    health = DeliveryHealth(clock)
    health.failed("reply", ADDRESS, "no answer", since=clock.now - 60)
    assert [outage.seconds for outage in health.outages()] == [60]


def seconds_of(time: Time) -> float:
    return time().timestamp()


async def test_replies_that_arrive_or_are_refused_end_an_outage(tmp_path: Path) -> None:
    for number, end in enumerate((None, Undeliverable("blocked"))):
        failures = [Transient("Bad Gateway") for _ in range(10)]
        wire = Wire(*failures, *([end] if end else []))
        time = Time()
        with capture_logs() as logs:
            (folder := tmp_path / str(number)).mkdir()
            async with posting(folder, wire, time=time) as post:
                post.delivery.health.clock = partial(seconds_of, time)
                await post.say(HELLO, "reply")
                await post.arrived()
                assert not list(post.delivery.health.outages())
        events = [line["event"] for line in logs if line["event"].startswith("delivery")]
        assert events == ["delivery_interrupted", "delivery_resumed"]


def test_a_server_that_is_that_of_one_chat_is_late_but_no_outage() -> None:
    clock = Clock()
    health = DeliveryHealth(clock)
    since = clock.now
    for _ in range(2):
        health.failed("reply", ADDRESS, "Bad Gateway", since=since, is_alone=True)
        clock.now += LATE_AFTER + 1
    assert not list(health.outages())
    assert health.late() == 1
