import asyncio
import time
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from gateway.metrics import OTHER, Histogram, Metrics, watch_lag
from gateway.spool import AddUsage


def test_models_after_the_first_fifty_share_one_label() -> None:
    """People who can choose any model name must not create an unlimited number of time series."""
    metrics = Metrics()
    for number in range(1000):
        metrics.model_called(f"made-up/{number}", "answered", seconds=1.0, first_word=0.5)
        metrics.usage_added(AddUsage(day="2026-03-01", person="p", model=f"another/{number}", input_tokens=1))
    names = {model for model, *_ in (*metrics.requests, *metrics.answers, *metrics.tokens, *metrics.cost_micros)}
    assert len(names) == 51
    assert OTHER in names
    assert metrics.tokens.total() == 1000
    assert metrics.requests.total() == 1000


def test_an_answer_resets_the_consecutive_failures() -> None:
    metrics = Metrics()
    for outcome in ("answered", "failed", "failed"):
        metrics.model_called("a/b", outcome, seconds=1.0, first_word=None)
    assert metrics.failing["a/b"] == 2
    metrics.model_called("a/b", "answered", seconds=1.0, first_word=0.1)
    assert metrics.failing["a/b"] == 0


@given(st.lists(st.floats(min_value=0, max_value=20)))
def test_each_bucket_counts_the_values_up_to_its_bound(seen: list[float]) -> None:
    kept = Histogram((1.0, 5.0, 10.0))
    for value in seen:
        kept.observe(value)
    expected = [(bound, sum(value <= bound for value in seen)) for bound in (1.0, 5.0, 10.0, inf)]
    assert list(kept.cumulative()) == expected
    assert kept.count == len(seen)


def test_bound_of_covers_the_share_of_the_values() -> None:
    kept = Histogram((1.0, 5.0))
    assert kept.bound_of(0.95) == 0.0
    for value in (0.5, 0.5, 3.0):
        kept.observe(value)
    assert kept.bound_of(0.5) == 1.0
    assert kept.bound_of(0.95) == 5.0
    kept.observe(100.0)
    assert kept.bound_of(0.95) == inf


STALL = 0.2


async def test_a_blocked_event_loop_is_observed() -> None:
    seen: asyncio.Queue[float] = asyncio.Queue()
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(watch_lag(seen.put_nowait, interval=0.01), name="lag")
        await seen.get()
        time.sleep(STALL)  # noqa: ASYNC251 - that is the point
        while await seen.get() < STALL / 2:
            pass
        watching.cancel()
