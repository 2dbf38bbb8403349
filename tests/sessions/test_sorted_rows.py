"""Sorted rows behave as a sorted set, however many blocks they have."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.sessions import sorted_rows
from gateway.sessions.sorted_rows import SortedRows, combined

numbers = st.integers(min_value=0, max_value=9999)


def row(number: int) -> bytes:
    return number.to_bytes(4, "big")


def filled(chosen: set[int]) -> SortedRows:
    rows = SortedRows()
    for number in chosen:
        rows.add(row(number))
    return rows


@given(first=numbers, step=st.integers(min_value=1, max_value=7919), count=st.integers(0, 3000), removed=numbers)
def test_rows_of_many_blocks_are_a_sorted_set(first: int, step: int, count: int, removed: int) -> None:
    """`step` decides in which order the rows are added."""
    chosen = [(first + at * step) % 10_000 for at in range(count)]
    rows = filled(set())
    for number in chosen:
        rows.add(row(number))
    for number in chosen[: removed % (count + 1)]:
        rows.discard(row(number))
    left = sorted({*map(row, chosen)} - {*map(row, chosen[: removed % (count + 1)])})
    assert rows.between(0, len(rows)) == left
    assert len(rows) == len(left)
    visited: list[bytes] = []
    while found := rows.after(visited[-1] if visited else b""):
        assert len(found) <= sorted_rows.MAX_BLOCK
        visited += found
    assert visited == left
    assert rows.rank(row(removed)) == sum(each < row(removed) for each in left)


@given(
    groups=st.lists(st.sets(numbers, max_size=60), max_size=5),
    begin=st.integers(min_value=0, max_value=200),
    size=st.integers(min_value=0, max_value=50),
)
def test_a_page_of_several_lists_is_that_of_their_union(groups: list[set[int]], begin: int, size: int) -> None:
    # No row is in two lists.
    apart = [{number * len(groups) + at for number in group} for at, group in enumerate(groups)]
    union = sorted(row(number) for group in apart for number in group)
    assert combined([filled(group) for group in apart], begin, begin + size) == union[begin : begin + size]
