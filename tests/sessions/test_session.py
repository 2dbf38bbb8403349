"""The state of a session, folded from its entries."""

from datetime import timedelta

import pytest
from hypothesis import given

from gateway.sessions import entries as e
from gateway.sessions.entries import Entry
from gateway.sessions.session import fold
from gateway.sessions.state import SessionStatus
from gateway.sessions.storage.rebuild import rebuilt_entries
from tests.sessions.samples import START, dialogue, header, sealed, transcripts


@given(transcripts)
def test_the_counts_of_a_state_never_exceed_the_entries(entries: list[Entry]) -> None:
    state = fold(entries)
    assert state.seq == len(entries)
    assert 0 <= state.messages <= len(entries)
    assert len(state.title) <= 80


def test_each_entry_type_changes_the_state() -> None:
    entries = sealed(
        [
            *dialogue(2),
            e.Title(value="Trip  to\nLisbon"),
            e.Workspace(value="site"),
            e.Agent(value="coder"),
            e.Model(value="large"),
            e.Status(value=SessionStatus.COMPLETED, by="ann", why="done"),
            e.Activated(key="x", epoch=8, highest_number=4),
        ]
    )
    state = fold(entries)
    assert (state.title, state.workspace, state.agent, state.model) == ("Trip to Lisbon", "site", "coder", "large")
    assert (state.status, state.epoch, state.highest_number) == (SessionStatus.COMPLETED, 8, 4)
    assert (state.messages, state.turns) == (4, 2)
    assert state.created_at == START
    assert state.last_accessed == START + timedelta(seconds=len(entries))
    assert state.updated_at == START + timedelta(seconds=11)


def test_the_first_message_gives_the_title() -> None:
    state = fold(sealed([header(), e.User(content="Plan  my trip\n" + "x" * 200), e.User(content="no title")]))
    assert state.title.startswith("Plan my trip xxx")
    assert len(state.title) == 80


def test_a_state_needs_a_header() -> None:
    with pytest.raises(TypeError, match="header"):
        fold(sealed([e.User(content="hi")]))


def test_usage_includes_undone_cleared_and_summarised_turns() -> None:
    used = e.Usage(input_tokens=100, cached_tokens=40, output_tokens=10, cost_micros=7)
    state = fold(
        sealed(
            [
                header(),
                e.User(content="go", turn="t1"),
                e.Assistant(content="gone", turn="t1", usage=used),
                e.Undo(undone="t1", first=2, messages=2),
                e.Summary(content="nothing", from_seq=2, covers=3, usage=used),
                e.Clear(),
                e.Assistant(content="still here", usage=None),
                e.ToolResult(tool_use_id="c", output="A picture.", usage=e.Usage(cost_micros=3)),
            ]
        )
    )
    assert (state.input_tokens, state.cached_tokens, state.output_tokens, state.cost_micros) == (200, 80, 20, 17)


def test_a_transcript_that_lost_its_start_counts_no_usage_twice() -> None:
    used = e.Usage(input_tokens=100, cost_micros=7)
    result = e.ToolResult(tool_use_id="c", output="A picture.", usage=e.Usage(cost_micros=3))
    whole = sealed([header(), *[e.User(content="go")] * 5, e.Assistant(content="yes", usage=used), result])
    state = fold(whole)
    rebuilt, _ = rebuilt_entries("k", whole[-2:], state, state.updated_at)
    before = next(entry for entry in rebuilt if isinstance(entry, e.Checkpoint)).state
    assert (state.cost_micros, before.cost_micros, before.input_tokens) == (10, 0, 0)
