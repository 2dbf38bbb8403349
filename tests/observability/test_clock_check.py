from datetime import UTC, datetime, timedelta

from gateway.observability.housekeeping import ClockCheck

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def test_the_clock_is_trusted_after_an_hour_in_step() -> None:
    clock = ClockCheck(needed=100.0)
    results = [clock.is_trusted(NOW + timedelta(seconds=at), 5.0 + at) for at in range(0, 121, 30)]
    assert results == [False, False, False, False, True]


def test_a_jump_of_the_clock_restarts_the_wait() -> None:
    """A machine that boots ten years ahead must not expire every session."""
    clock = ClockCheck(needed=100.0)
    clock.is_trusted(NOW, 0.0)
    assert clock.is_trusted(NOW + timedelta(seconds=100), 100.0)
    ahead = NOW + timedelta(days=3650)
    assert not clock.is_trusted(ahead, 130.0)
    assert not clock.is_trusted(NOW + timedelta(seconds=160), 160.0)
    assert clock.is_trusted(NOW + timedelta(seconds=260), 260.0)
