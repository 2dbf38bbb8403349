"""Cleared and undone entries do not count, and a valid summary replaces the entries it covers."""

import pytest

from gateway.conversation import UserMessage
from gateway.sessions import entries as e
from gateway.sessions.entries import Entry
from gateway.sessions.history import history_for_model, undo_last_turn, visible_lines
from gateway.sessions.session import fold
from gateway.sessions.storage.codec import stamp
from tests.sessions.samples import START, dialogue, sealed, texts_of


def test_history_starts_after_the_last_clear() -> None:
    entries = sealed([*dialogue(2), e.Clear(), e.User(content="afresh")])
    assert history_for_model(entries, 50) == [UserMessage(text="afresh")]
    assert [line.text for line in visible_lines(entries, 9)] == ["afresh"]
    assert fold(entries).messages == 1


def test_an_undone_turn_does_not_count() -> None:
    undo = undo_last_turn(sealed(dialogue(2)))
    assert undo == e.Undo(undone="t2", first=8, messages=2)
    entries = sealed([*dialogue(2), undo])
    assert "question of t2" not in texts_of(history_for_model(entries, 50))
    assert [line.text for line in visible_lines(entries, 9)] == ["question of t1", "answer of t1"]
    assert (fold(entries).messages, fold(entries).turns) == (2, 1)


def test_undo_goes_back_turn_by_turn_to_the_start() -> None:
    entries = sealed(dialogue(2))
    for turn in ("t2", "t1"):
        undo = undo_last_turn(entries)
        assert undo is not None
        assert undo.undone == turn
        entries = [*entries, stamp(undo, seq=len(entries) + 1, now=START)[0]]
    assert undo_last_turn(entries) is None
    assert history_for_model(entries, 50) == []


def test_a_summary_replaces_the_messages_it_covers() -> None:
    entries = sealed([*dialogue(3), e.Summary(content="they talked", from_seq=1, covers=12)])
    messages = history_for_model(entries, 50)
    assert texts_of(messages)[0].endswith("they talked")
    assert texts_of(messages)[1] == "question of t3"
    assert isinstance(messages[0], UserMessage)


def test_a_summary_stays_in_front_of_any_number_of_messages() -> None:
    before = dialogue(1)
    after = [*before, e.Summary(content="they talked", from_seq=1, covers=len(before)), *dialogue(9)[7:]]
    messages = history_for_model(sealed(after), 10)
    assert len(messages) <= 10
    assert texts_of(messages)[0].endswith("they talked")
    assert texts_of(messages)[-1] == "answer of t9"


def test_the_newest_summary_is_used() -> None:
    older = e.Summary(content="older", from_seq=1, covers=7)
    newer = e.Summary(content="newer", from_seq=1, covers=12)
    messages = history_for_model(sealed([*dialogue(2), older, newer, e.User(content="go on")]), 50)
    assert texts_of(messages) == ["[Summary of the earlier conversation]\n\nnewer", "go on"]


@pytest.mark.parametrize(
    "afterwards",
    [
        [e.Summary(content="splits a turn", from_seq=1, covers=9)],
        [e.Summary(content="speaks of what is to come", from_seq=1, covers=99)],
        [e.Summary(content="is the wrong way round", from_seq=9, covers=7)],
        [e.Summary(content="tells what was undone", from_seq=1, covers=12), e.Undo(undone="t2", first=8, messages=2)],
    ],
)
def test_an_invalid_summary_is_ignored(afterwards: list[Entry]) -> None:
    valid = e.Summary(content="valid", from_seq=1, covers=7)
    messages = history_for_model(sealed([*dialogue(2), valid, *afterwards, e.User(content="go on")]), 50)
    assert texts_of(messages)[0].endswith("valid")


def test_a_summary_of_cleared_messages_is_ignored() -> None:
    late = e.Summary(content="tells what was cleared", from_seq=1, covers=12)
    assert history_for_model(sealed([*dialogue(2), e.Clear(), late, e.User(content="go on")]), 50) == [
        UserMessage(text="go on")
    ]
