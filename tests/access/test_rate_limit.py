from gateway.access.guests import Person
from gateway.access.rate_limit import MAX_PEOPLE, MINUTE, STOP_RESERVE, RateCheck, RateLimiter


def person(name: str = "ada") -> Person:
    return Person(channel="loopback", account="default", sender=name)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_after_a_burst_one_message_is_answered_and_the_rest_are_refused_silently() -> None:
    limiter = RateLimiter(Clock())
    checks = [limiter.check(person(), per_minute=3) for _ in range(6)]
    assert checks == [RateCheck.ALLOWED] * 3 + [RateCheck.LIMITED] + [RateCheck.LIMITED_AGAIN] * 2


def test_the_allowance_refills_and_the_next_burst_is_answered_again() -> None:
    clock = Clock()
    limiter = RateLimiter(clock)
    for _ in range(5):
        limiter.check(person(), per_minute=3)
    clock.now += MINUTE / 3
    assert limiter.check(person(), per_minute=3) is RateCheck.ALLOWED
    assert limiter.check(person(), per_minute=3) is RateCheck.LIMITED_AGAIN
    clock.now += MINUTE
    assert [limiter.check(person(), per_minute=3) for _ in range(4)] == [RateCheck.ALLOWED] * 3 + [RateCheck.LIMITED]


def test_late_messages_count_at_the_time_they_were_written() -> None:
    limiter = RateLimiter(Clock())
    late = [limiter.check(person(), per_minute=3, age=(60 - minute) * MINUTE) for minute in range(60)]
    assert late == [RateCheck.ALLOWED] * 60


def test_a_burst_that_arrives_late_is_still_limited() -> None:
    limiter = RateLimiter(Clock())
    checks = [limiter.check(person(), per_minute=3, age=MINUTE) for _ in range(4)]
    assert checks == [RateCheck.ALLOWED] * 3 + [RateCheck.LIMITED]


def test_a_late_message_after_a_new_one_costs_one_token() -> None:
    clock = Clock()
    limiter = RateLimiter(clock)
    while limiter.check(person(), per_minute=3) is RateCheck.ALLOWED:
        pass
    clock.now += MINUTE / 3
    assert limiter.check(person(), per_minute=3, age=3600.0) is RateCheck.ALLOWED
    assert limiter.check(person(), per_minute=3) is RateCheck.LIMITED_AGAIN


def test_each_person_has_their_own_limit() -> None:
    limiter = RateLimiter(Clock())
    while limiter.check(person("bob"), per_minute=3) is RateCheck.ALLOWED:
        pass
    assert limiter.check(person(), per_minute=3) is RateCheck.ALLOWED


def test_stop_has_a_reserve_above_the_limit() -> None:
    limiter = RateLimiter(Clock())
    while limiter.check(person(), per_minute=3) is RateCheck.ALLOWED:
        pass
    stops = [limiter.check(person(), per_minute=3, is_stop=True) for _ in range(STOP_RESERVE + 1)]
    assert stops == [RateCheck.ALLOWED] * STOP_RESERVE + [RateCheck.LIMITED_AGAIN]


def test_a_limit_of_zero_means_no_limit() -> None:
    limiter = RateLimiter(Clock())
    assert {limiter.check(person(), per_minute=0) for _ in range(100)} == {RateCheck.ALLOWED}


def test_the_number_of_remembered_people_is_bounded() -> None:
    limiter = RateLimiter(Clock())
    for number in range(MAX_PEOPLE + 10):
        limiter.check(person(str(number)), per_minute=3)
    assert len(limiter._buckets) == MAX_PEOPLE  # noqa: SLF001 - that it is bounded shows nowhere else.
