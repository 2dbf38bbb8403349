"""The text format in which Prometheus reads metrics.

It is described at https://prometheus.io/docs/instrumenting/exposition_formats/.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gateway.metrics.histogram import Histogram

__all__ = ["CONTENT_TYPE", "Family", "counter", "gauge", "histogram", "render"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[str, ...]
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric: its name, what it says, and its lines without the name before them."""

    name: str
    kind: str
    help: str
    lines: tuple[str, ...]


def gauge(name: str, help_: str, values: Mapping[Labels, float] | float, labels: Labels = ()) -> Family:
    """`values` are by the values of `labels`, in their order; a number where there are none."""
    return Family(name=name, kind="gauge", help=help_, lines=tuple(_lines(values, labels)))


def counter(name: str, help_: str, values: Mapping[Labels, float] | float, labels: Labels = ()) -> Family:
    return Family(name=name, kind="counter", help=help_, lines=tuple(_lines(values, labels)))


def histogram(name: str, help_: str, values: Mapping[Labels, Histogram], labels: Labels = ()) -> Family:
    lines = (
        line for key, each in values.items() for line in _histogram_lines(each, tuple(zip(labels, key, strict=True)))
    )
    return Family(name=name, kind="histogram", help=help_, lines=tuple(lines))


def render(families: Iterable[Family]) -> str:
    return "".join(line for family in families for line in _rendered(family))


def _rendered(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {family.help.translate(_HELP_ESCAPES)}\n"
    yield f"# TYPE {family.name} {family.kind}\n"
    for line in family.lines:
        yield f"{family.name}{line}\n"


def _lines(values: Mapping[Labels, float] | float, labels: Labels) -> Iterator[str]:
    if not isinstance(values, Mapping):
        values = {(): values}
    for key, value in values.items():
        yield f"{_braced(tuple(zip(labels, key, strict=True)))} {_number(value)}"


def _histogram_lines(each: Histogram, labels: tuple[tuple[str, str], ...]) -> Iterator[str]:
    for bound, count in each.cumulative():
        yield f"_bucket{_braced((*labels, ('le', _number(bound))))} {count}"
    yield f"_sum{_braced(labels)} {_number(each.total)}"
    yield f"_count{_braced(labels)} {each.count}"


def _braced(labels: tuple[tuple[str, str], ...]) -> str:
    inside = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels)
    return f"{{{inside}}}" if inside else ""


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(value) if isinstance(value, int) else repr(float(value))
