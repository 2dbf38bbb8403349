from datetime import UTC, datetime, timedelta

from gateway.observability.housekeeping import Steadiness

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def test_a_clock_is_believed_after_it_has_gone_right_for_long_enough() -> None:
    clock = Steadiness(needed=100.0)
    looks = [clock.look(NOW + timedelta(seconds=at), 5.0 + at) for at in range(0, 121, 30)]
    assert looks == [False, False, False, False, True]


def test_a_jump_starts_the_wait_anew() -> None:
    """A machine that boots ten years ahead must not take every conversation for forgotten."""
    clock = Steadiness(needed=100.0)
    clock.look(NOW, 0.0)
    assert clock.look(NOW + timedelta(seconds=100), 100.0)
    ahead = NOW + timedelta(days=3650)
    assert not clock.look(ahead, 130.0)
    assert not clock.look(NOW + timedelta(seconds=160), 160.0)
    assert clock.look(NOW + timedelta(seconds=260), 260.0)
