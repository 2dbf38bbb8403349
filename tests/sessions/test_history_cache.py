"""The cached history equals the computed one at every point of a session."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.sessions import entries as e
from gateway.sessions.cache import HistoryCache
from gateway.sessions.entries import Entry
from gateway.sessions.history import split_history
from tests.sessions.samples import conversation, dialogue, header, marks, sealed

bodies = st.lists(conversation | conversation | marks, max_size=6)
sizes = st.integers(min_value=1, max_value=12)


def of_turn(number: int, body: list[Entry]) -> list[Entry]:
    question = e.User(content=f"question {number}")
    return [msgspec.structs.replace(entry, turn=f"t{number}") for entry in (question, *body)]


@given(st.lists(bodies, max_size=12), sizes, st.none() | st.integers(min_value=2, max_value=20))
def test_the_cached_history_equals_the_computed_one_after_every_entry(
    turns: list[list[Entry]], size: int, max_chars: int | None
) -> None:
    entries: list[Entry] = []
    cache = HistoryCache()
    whole = sealed([header(), *(entry for number, body in enumerate(turns) for entry in of_turn(number, body))])
    for entry in whole:
        entries.append(entry)
        told = cache.split(entries, size, turn=entry.turn, max_chars=max_chars)
        assert told == split_history(entries, size, turn=entry.turn, max_chars=max_chars)
        whole_so_far = cache.split(entries, size, max_chars=max_chars)
        assert whole_so_far == split_history(entries, size, max_chars=max_chars)


def test_a_larger_window_reaches_further_back() -> None:
    entries = [*sealed(dialogue(100)), e.User(content="now", turn="now")]
    cache = HistoryCache()
    assert cache.split(entries, 4, turn="now") == split_history(entries, 4, turn="now")
    assert cache.split(entries, 40, turn="now") == split_history(entries, 40, turn="now")


def test_messages_after_a_summary_are_cached_too() -> None:
    """After a summary, a turn costs no more than before it."""
    entries: list[Entry] = []
    cache = HistoryCache()
    spoken = dialogue(60)
    spoken.insert(2 + 5 * 20, e.Summary(content="It was about time.", from_seq=3 + 5 * 3, covers=2 + 5 * 15))
    for entry in sealed(spoken):
        entries.append(entry)
        assert cache.split(entries, 30, turn=entry.turn) == split_history(entries, 30, turn=entry.turn)
    before, _ = cache.split(entries, 30, turn="t60")
    again, _ = cache.split(entries, 30, turn="t60")
    assert before[0] is again[0]
    assert "about time" in str(before[0])
