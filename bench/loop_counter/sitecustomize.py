"""Counts the event-loop iterations of a process for `bench/process.py`. Python imports it at the start, by its name."""

import mmap
import os
import selectors
import struct


def _count(path: str) -> None:
    with open(path, "r+b") as file:  # noqa: PTH123 - this module must be cheap to import
        shared = mmap.mmap(file.fileno(), 8)
    select, number = selectors.EpollSelector.select, 0

    def counted(self: selectors.EpollSelector, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        nonlocal number
        number += 1
        struct.pack_into("q", shared, 0, number)
        return select(self, timeout)

    selectors.EpollSelector.select = counted  # type: ignore[assignment, method-assign]


if counter := os.environ.get("BENCH_LOOP_COUNTER"):
    _count(counter)
