from gateway.metrics import OTHER, Tally
from gateway.spool import Spend


def test_models_beyond_the_first_fifty_are_told_as_one() -> None:
    """Somebody who may name models freely must not make ever more time series."""
    tally = Tally()
    for number in range(1000):
        tally.asked(f"made-up/{number}", "answered", seconds=1.0, first_word=0.5)
        tally.spent(Spend(day="2026-03-01", person="p", model=f"another/{number}", input_tokens=1))
    names = {model for model, *_ in (*tally.requests, *tally.answers, *tally.tokens, *tally.cost_micros)}
    assert len(names) == 51
    assert OTHER in names
    assert tally.tokens.total() == 1000
    assert tally.requests.total() == 1000


def test_failures_in_a_row_end_with_an_answer() -> None:
    tally = Tally()
    for outcome in ("answered", "failed", "failed"):
        tally.asked("a/b", outcome, seconds=1.0, first_word=None)
    assert tally.failing["a/b"] == 2
    tally.asked("a/b", "answered", seconds=1.0, first_word=0.1)
    assert tally.failing["a/b"] == 0
