from math import inf

from hypothesis import given
from hypothesis import strategies as st

from gateway.metrics import Histogram


@given(st.lists(st.floats(min_value=0, max_value=20)))
def test_each_bound_counts_what_kept_to_it(seen: list[float]) -> None:
    kept = Histogram((1.0, 5.0, 10.0))
    for value in seen:
        kept.observe(value)
    expected = [(bound, sum(value <= bound for value in seen)) for bound in (1.0, 5.0, 10.0, inf)]
    assert list(kept.cumulative()) == expected
    assert kept.count == len(seen)


def test_a_share_of_the_values_kept_to_a_bound() -> None:
    kept = Histogram((1.0, 5.0))
    assert kept.bound_of(0.95) == 0.0
    for value in (0.5, 0.5, 3.0):
        kept.observe(value)
    assert kept.bound_of(0.5) == 1.0
    assert kept.bound_of(0.95) == 5.0
    kept.observe(100.0)
    assert kept.bound_of(0.95) == inf
