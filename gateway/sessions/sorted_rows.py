"""Sorted lists of bytes for the session directory: quick to change, to cut a page out of, and to combine. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

MAX_BLOCK = 1024


class SortedRows:
    """Rows in order, each once. They are in blocks, so that a change moves the rows of one block only."""

    __slots__ = ("_blocks", "_count")

    def __init__(self) -> None:
        self._blocks: list[list[bytes]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: int) -> bytes:
        return self.between(at, at + 1)[0]

    def between(self, begin: int, end: int) -> list[bytes]:
        """Return the rows from `begin` up to `end`, which is not included."""
        found: list[bytes] = []
        for block in self._blocks:
            if end <= 0:
                break
            found += block[max(begin, 0) : end]
            begin, end = begin - len(block), end - len(block)
        return found

    def after(self, row: bytes) -> list[bytes]:
        """Return the next rows after `row`, as many as are in one block; an empty list at the end.

        So all rows can be visited in steps, while others are added and removed.
        """
        number = self._block_of(row)
        while number < len(self._blocks):
            block = self._blocks[number]
            if found := block[bisect_right(block, row) :]:
                return found
            number += 1
        return []

    def rank(self, row: bytes) -> int:
        """Return how many rows come before `row`."""
        number = self._block_of(row)
        before = sum(map(len, self._blocks[:number]))
        return before + bisect_left(self._blocks[number], row) if number < len(self._blocks) else before

    def add(self, row: bytes) -> None:
        """Add a row, unless it is there already."""
        blocks = self._blocks
        if not blocks:
            blocks.append([row])
            self._count = 1
            return
        # A row after all others belongs to the last block.
        number = min(self._block_of(row), len(blocks) - 1)
        block = blocks[number]
        at = bisect_left(block, row)
        if at < len(block) and block[at] == row:
            return
        block.insert(at, row)
        self._count += 1
        if len(block) > MAX_BLOCK:
            half = len(block) // 2
            blocks[number : number + 1] = [block[:half], block[half:]]

    def discard(self, row: bytes) -> None:
        """Remove a row, if it is there."""
        number = self._block_of(row)
        if number == len(self._blocks):
            return
        block = self._blocks[number]
        at = bisect_left(block, row)
        if block[at] != row:
            return
        del block[at]
        self._count -= 1
        if not block:
            del self._blocks[number]

    def _block_of(self, row: bytes) -> int:
        """Return the number of the first block that ends with `row` or after it."""
        return bisect_left(self._blocks, row, key=_last)


def _last(block: list[bytes]) -> bytes:
    return block[-1]


def combined(lists: Sequence[SortedRows], begin: int, end: int) -> list[bytes]:
    """Return the rows from `begin` up to `end` of all lists together, in order. No row is in two lists."""
    begins, ends = _shares(lists, begin), _shares(lists, end)
    return sorted(row for rows, *limits in zip(lists, begins, ends, strict=True) for row in rows.between(*limits))


def _shares(lists: Sequence[SortedRows], count: int) -> list[int]:
    """Return how many rows of each list are among the first `count` of all lists together."""
    low, high = [0] * len(lists), [min(len(rows), count) for rows in lists]
    count = min(count, sum(map(len, lists)))
    # A binary search in all lists at once. Each step halves the widest range, and often most others.
    while sum(high) > count:
        widest = max(range(len(lists)), key=lambda at: high[at] - low[at])
        middle = (low[widest] + high[widest]) // 2
        pivot = lists[widest][middle]
        ranks = [rows.rank(pivot) for rows in lists]
        if sum(ranks) < count:  # The pivot and all rows before it are among the first.
            low = list(map(max, low, ranks))
            low[widest] = middle + 1
        else:
            high = list(map(min, high, ranks))
    return high
