from gateway.access.guests import Person
from gateway.access.rate_limit import MINUTE, REMEMBERED, RESERVE, FloodGate, Pace


def person(name: str = "ada") -> Person:
    return Person(channel="loopback", account="default", sender=name)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_is_taken_then_one_is_told_and_the_rest_are_silent() -> None:
    gate = FloodGate(Clock())
    paces = [gate.pace(person(), per_minute=3) for _ in range(6)]
    assert paces == [Pace.FINE] * 3 + [Pace.TOO_FAST] + [Pace.TOO_FAST_STILL] * 2


def test_the_limit_fills_up_again_and_the_next_flood_is_told_anew() -> None:
    clock = Clock()
    gate = FloodGate(clock)
    for _ in range(5):
        gate.pace(person(), per_minute=3)
    clock.now += MINUTE / 3
    assert gate.pace(person(), per_minute=3) is Pace.FINE
    assert gate.pace(person(), per_minute=3) is Pace.TOO_FAST_STILL
    clock.now += MINUTE
    assert [gate.pace(person(), per_minute=3) for _ in range(4)] == [Pace.FINE] * 3 + [Pace.TOO_FAST]


def test_what_comes_late_all_at_once_is_judged_by_when_it_was_written() -> None:
    gate = FloodGate(Clock())
    late = [gate.pace(person(), per_minute=3, age=(60 - minute) * MINUTE) for minute in range(60)]
    assert late == [Pace.FINE] * 60


def test_a_flood_that_comes_late_is_one_all_the_same() -> None:
    gate = FloodGate(Clock())
    assert [gate.pace(person(), per_minute=3, age=MINUTE) for _ in range(4)] == [Pace.FINE] * 3 + [Pace.TOO_FAST]


def test_what_comes_late_after_something_new_costs_no_more_than_it() -> None:
    clock = Clock()
    gate = FloodGate(clock)
    while gate.pace(person(), per_minute=3) is Pace.FINE:
        pass
    clock.now += MINUTE / 3
    assert gate.pace(person(), per_minute=3, age=3600.0) is Pace.FINE
    assert gate.pace(person(), per_minute=3) is Pace.TOO_FAST_STILL


def test_one_persons_flood_is_not_anothers() -> None:
    gate = FloodGate(Clock())
    while gate.pace(person("bob"), per_minute=3) is Pace.FINE:
        pass
    assert gate.pace(person(), per_minute=3) is Pace.FINE


def test_stopping_works_a_little_longer() -> None:
    gate = FloodGate(Clock())
    while gate.pace(person(), per_minute=3) is Pace.FINE:
        pass
    stops = [gate.pace(person(), per_minute=3, is_stop=True) for _ in range(RESERVE + 1)]
    assert stops == [Pace.FINE] * RESERVE + [Pace.TOO_FAST_STILL]


def test_no_limit_is_none() -> None:
    gate = FloodGate(Clock())
    assert {gate.pace(person(), per_minute=0) for _ in range(100)} == {Pace.FINE}


def test_a_crowd_does_not_fill_the_memory() -> None:
    gate = FloodGate(Clock())
    for number in range(REMEMBERED + 10):
        gate.pace(person(str(number)), per_minute=3)
    assert len(gate._meters) == REMEMBERED  # noqa: SLF001 - that it is bounded shows nowhere else.
