"""The table that `make bench` prints."""

import statistics
from collections.abc import Callable, Iterable
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
    table = [("what", "measured", "baseline, same run", "target", ""), *(_cells(row) for row in rows)]
    widths = [max(len(cells[column]) for cells in table) for column in range(len(table[0]))]
    table.insert(1, tuple("-" * width for width in widths))
    for cells in table:
        print(" | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)))


def _cells(row: Row) -> tuple[str, ...]:
    return row.what, row.measured, row.baseline, row.target, "ok" if row.is_met else "MISSED"
