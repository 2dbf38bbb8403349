from itertools import islice

from gateway.aio import backoff_delays


def test_waits_double_up_to_the_cap() -> None:
    class NoJitter:
        def uniform(self, _low: float, high: float) -> float:
            return high

    assert list(islice(backoff_delays(first=1, cap=5, jitter=NoJitter()), 5)) == [1, 2, 4, 5, 5]


def test_jitter_shortens_by_at_most_half() -> None:
    assert all(0.25 <= wait <= 0.5 for wait in (next(backoff_delays(first=0.5)) for _ in range(100)))
