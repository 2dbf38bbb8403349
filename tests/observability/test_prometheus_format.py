"""The text format, parsed by the official client."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics import Histogram
from gateway.observability.prometheus import counter, gauge, histogram, render

# The parser splits lines at all of Python's line ends, which Prometheus does not. So these are left out.
values = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"], include_characters='\n"\\'))


@given(st.dictionaries(st.tuples(values, values), st.floats(allow_nan=False, allow_infinity=False)))
def test_labels_and_numbers_survive_a_round_trip(samples: dict[tuple[str, ...], float]) -> None:
    text = render([gauge("some_name", 'Says "so" \\ and\nso.', samples, ("one", "other"))])
    (family,) = text_string_to_metric_families(text)
    assert family.documentation == 'Says "so" \\ and\nso.'
    assert {(each.labels["one"], each.labels["other"]): each.value for each in family.samples} == samples


def test_a_counter_is_declared_as_a_counter() -> None:
    (family,) = text_string_to_metric_families(render([counter("seen_total", "Seen.", 3)]))
    assert (family.type, family.samples[0].name, family.samples[0].value) == ("counter", "seen_total", 3)


def test_a_histogram_has_cumulative_buckets_up_to_infinity() -> None:
    seen = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        seen.observe(value)
    (family,) = text_string_to_metric_families(render([histogram("took_seconds", "Took.", {("a",): seen}, ("by",))]))
    buckets = {each.labels["le"]: each.value for each in family.samples if each.name == "took_seconds_bucket"}
    others = {each.name: each.value for each in family.samples if "le" not in each.labels}
    assert family.type == "histogram"
    assert buckets == {"0.1": 2, "1.0": 3, "+Inf": 4}
    assert others == {"took_seconds_sum": 7.65, "took_seconds_count": 4}
