"""The table that `make bench` prints."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    what: str
    measured: str
    baseline: str
    target: str
    is_met: bool


def median(measure: Callable[[], float], times: int) -> float:
    """Return the median of `times` measurements, after one that warms the caches."""
    measure()
    return statistics.median(measure() for _ in range(times))


def show(rows: Iterable[Row]) -> None:
    print_table([("what", "measured", "baseline, same run", "target", ""), *(_cells(row) for row in rows)])


def print_table(lines: Sequence[Sequence[str]]) -> None:
    """Print lines of cells as a Markdown table. The first line is the header."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for cells in (lines[0], ["-" * width for width in widths], *lines[1:]):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |")


def _cells(row: Row) -> tuple[str, ...]:
    return row.what, row.measured, row.baseline, row.target, "ok" if row.is_met else "MISSED"
