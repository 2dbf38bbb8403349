from gateway.metrics import OTHER, Metrics
from gateway.spool import AddUsage


def test_models_beyond_the_first_fifty_are_told_as_one() -> None:
    """Somebody who may name models freely must not make ever more time series."""
    metrics = Metrics()
    for number in range(1000):
        metrics.model_called(f"made-up/{number}", "answered", seconds=1.0, first_word=0.5)
        metrics.usage_added(AddUsage(day="2026-03-01", person="p", model=f"another/{number}", input_tokens=1))
    names = {model for model, *_ in (*metrics.requests, *metrics.answers, *metrics.tokens, *metrics.cost_micros)}
    assert len(names) == 51
    assert OTHER in names
    assert metrics.tokens.total() == 1000
    assert metrics.requests.total() == 1000


def test_failures_in_a_row_end_with_an_answer() -> None:
    metrics = Metrics()
    for outcome in ("answered", "failed", "failed"):
        metrics.model_called("a/b", outcome, seconds=1.0, first_word=None)
    assert metrics.failing["a/b"] == 2
    metrics.model_called("a/b", "answered", seconds=1.0, first_word=0.1)
    assert metrics.failing["a/b"] == 0
