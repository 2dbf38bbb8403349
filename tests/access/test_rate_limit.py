from gateway.access.guests import Person
from gateway.access.rate_limit import MAX_PEOPLE, MINUTE, STOP_RESERVE, RateCheck, RateLimiter


def person(name: str = "ada") -> Person:
    return Person(channel="loopback", account="default", sender=name)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_is_taken_then_one_is_told_and_the_rest_are_silent() -> None:
    limiter = RateLimiter(Clock())
    checks = [limiter.check(person(), per_minute=3) for _ in range(6)]
    assert checks == [RateCheck.ALLOWED] * 3 + [RateCheck.LIMITED] + [RateCheck.LIMITED_AGAIN] * 2


def test_the_limit_fills_up_again_and_the_next_flood_is_told_anew() -> None:
    clock = Clock()
    limiter = RateLimiter(clock)
    for _ in range(5):
        limiter.check(person(), per_minute=3)
    clock.now += MINUTE / 3
    assert limiter.check(person(), per_minute=3) is RateCheck.ALLOWED
    assert limiter.check(person(), per_minute=3) is RateCheck.LIMITED_AGAIN
    clock.now += MINUTE
    assert [limiter.check(person(), per_minute=3) for _ in range(4)] == [RateCheck.ALLOWED] * 3 + [RateCheck.LIMITED]


def test_what_comes_late_all_at_once_is_judged_by_when_it_was_written() -> None:
    limiter = RateLimiter(Clock())
    late = [limiter.check(person(), per_minute=3, age=(60 - minute) * MINUTE) for minute in range(60)]
    assert late == [RateCheck.ALLOWED] * 60


def test_a_flood_that_comes_late_is_one_all_the_same() -> None:
    limiter = RateLimiter(Clock())
    checks = [limiter.check(person(), per_minute=3, age=MINUTE) for _ in range(4)]
    assert checks == [RateCheck.ALLOWED] * 3 + [RateCheck.LIMITED]


def test_what_comes_late_after_something_new_costs_no_more_than_it() -> None:
    clock = Clock()
    limiter = RateLimiter(clock)
    while limiter.check(person(), per_minute=3) is RateCheck.ALLOWED:
        pass
    clock.now += MINUTE / 3
    assert limiter.check(person(), per_minute=3, age=3600.0) is RateCheck.ALLOWED
    assert limiter.check(person(), per_minute=3) is RateCheck.LIMITED_AGAIN


def test_one_persons_flood_is_not_anothers() -> None:
    limiter = RateLimiter(Clock())
    while limiter.check(person("bob"), per_minute=3) is RateCheck.ALLOWED:
        pass
    assert limiter.check(person(), per_minute=3) is RateCheck.ALLOWED


def test_stopping_works_a_little_longer() -> None:
    limiter = RateLimiter(Clock())
    while limiter.check(person(), per_minute=3) is RateCheck.ALLOWED:
        pass
    stops = [limiter.check(person(), per_minute=3, is_stop=True) for _ in range(STOP_RESERVE + 1)]
    assert stops == [RateCheck.ALLOWED] * STOP_RESERVE + [RateCheck.LIMITED_AGAIN]


def test_no_limit_is_none() -> None:
    limiter = RateLimiter(Clock())
    assert {limiter.check(person(), per_minute=0) for _ in range(100)} == {RateCheck.ALLOWED}


def test_a_crowd_does_not_fill_the_memory() -> None:
    limiter = RateLimiter(Clock())
    for number in range(MAX_PEOPLE + 10):
        limiter.check(person(str(number)), per_minute=3)
    assert len(limiter._buckets) == MAX_PEOPLE  # noqa: SLF001 - that it is bounded shows nowhere else.
