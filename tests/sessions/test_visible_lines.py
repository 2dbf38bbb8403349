"""A person sees the messages and nothing else."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.sessions import entries as e
from gateway.sessions.entries import Entry
from gateway.sessions.history import visible_lines
from tests.sessions.samples import transcripts


@given(transcripts, st.integers(min_value=0, max_value=9))
def test_visible_lines_are_the_messages_and_nothing_else(entries: list[Entry], limit: int) -> None:
    roles = {e.User: "user", e.Assistant: "assistant", e.System: "gateway"}
    messages = [entry for entry in entries if isinstance(entry, e.User | e.Assistant | e.System)]
    said = {(roles[type(entry)], entry.content) for entry in messages}
    shown = visible_lines(entries, limit)
    assert len(shown) <= limit
    assert {(line.role, line.text) for line in shown} <= said
