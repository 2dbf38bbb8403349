"""A person sees the messages and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sessions import entries as e
from gateway.sessions.entries import Entry
from gateway.sessions.history import visible_lines
from gateway.sessions.storage.tail import EnoughForLines
from tests.sessions.samples import transcripts


@given(transcripts, st.integers(min_value=0, max_value=9))
def test_visible_lines_are_the_messages_and_nothing_else(entries: list[Entry], limit: int) -> None:
    roles = {e.User: "user", e.Assistant: "assistant", e.System: "gateway"}
    messages = [entry for entry in entries if isinstance(entry, e.User | e.Assistant | e.System)]
    said = {(roles[type(entry)], entry.content) for entry in messages}
    shown = visible_lines(entries, limit)
    assert len(shown) <= limit
    assert {(line.role, line.text) for line in shown} <= said


def _turn_with_a_file(turn: str) -> list[Entry]:
    return [
        e.User(content=f"question of {turn}", event_id=f"event of {turn}", turn=turn),
        e.Assistant(content=f"step of {turn}", turn=turn),
        e.SentFile(name="a.txt", media_type="text/plain", size=1, ref=f"ref of {turn}", turn=turn),
        e.Assistant(content=f"answer of {turn}", turn=turn),
    ]


def test_the_file_of_an_answer_follows_its_text() -> None:
    """The answer is delivered in this order, so a page that reloads must not show another one."""
    shown = visible_lines([*_turn_with_a_file("t1"), *_turn_with_a_file("t2")], 9)
    assert [(line.text, line.turn, line.event_id) for line in shown] == [
        (text, turn, f"event of {turn}" if text.startswith("question") else None)
        for turn in ("t1", "t2")
        for text in (f"question of {turn}", f"step of {turn}", f"answer of {turn}", "[file: a.txt]")
    ]


@pytest.mark.parametrize("limit", range(1, 9))
def test_the_file_of_an_answer_is_read_with_its_text(limit: int) -> None:
    entries = [*_turn_with_a_file("t1"), *_turn_with_a_file("t2")]
    enough = EnoughForLines(limit)
    read = 0
    while read < len(entries) and not enough.is_enough:
        read += 1
        enough.add(entries[-read])
    assert visible_lines(entries[-read:], limit) == visible_lines(entries, limit)
