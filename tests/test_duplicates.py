from datetime import UTC, datetime

from gateway.contract import Address, Inbound, PeerKind, Sender
from gateway.duplicates import KEPT_FOR, Seen


def event(event_id: str, *, channel: str = "web", account: str = "default") -> Inbound:
    return Inbound(
        address=Address(channel=channel, account=account, kind=PeerKind.DIRECT, peer="p"),
        sender=Sender(id="p"),
        event_id=event_id,
        text="",
        sent_at=datetime(2026, 3, 1, tzinfo=UTC),
    )


def test_an_event_is_taken_once() -> None:
    seen = Seen(lambda: 0.0)
    assert seen.take(event("1"))
    assert not seen.take(event("1"))


def test_the_same_id_elsewhere_is_another_event() -> None:
    seen = Seen(lambda: 0.0)
    assert all(seen.take(each) for each in (event("1"), event("1", channel="other"), event("1", account="second")))


def test_an_event_given_back_is_welcome_again() -> None:
    seen = Seen(lambda: 0.0)
    seen.take(event("1"))
    seen.give_back(event("1"))
    assert seen.take(event("1"))


def test_it_is_bounded_in_size_and_age() -> None:
    now = 0.0
    seen = Seen(lambda: now, capacity=2)
    for event_id in ("1", "2", "3"):
        seen.take(event(event_id))
    assert not seen.take(event("3"))
    assert seen.take(event("1"))
    now = KEPT_FOR + 1
    assert seen.take(event("3"))
