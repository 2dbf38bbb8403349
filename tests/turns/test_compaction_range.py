import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.conversation import Message, UserMessage
from gateway.sessions import entries as e
from gateway.sessions.entries import Entry
from gateway.sessions.history import current_summary, history_for_model
from gateway.sessions.session import fold
from gateway.turns.compaction import OlderPart, is_unchanged, older_part
from tests.sessions.samples import conversation, header, marks, sealed


def turn(number: int, *more: Entry) -> list[Entry]:
    said = [e.User(content=f"question {number}"), *more, e.Assistant(content=f"answer {number}")]
    end = e.TurnEnd(outcome=e.TurnOutcome.ANSWERED)
    return [msgspec.structs.replace(entry, turn=f"t{number}") for entry in (*said, end)]


def session(*turns: list[Entry]) -> list[Entry]:
    return sealed([header(), *(entry for each in turns for entry in each)])


def one(_message: Message) -> int:
    return 1


def divided(entries: list[Entry], keep: int = 2) -> OlderPart | None:
    return older_part(entries, first=fold(entries).first, keep_tokens=10_000, keep_messages=keep, size=one)


def test_the_older_part_ends_with_the_end_of_a_turn() -> None:
    entries = session(turn(1), turn(2), turn(3))
    older = divided(entries)
    assert older is not None
    assert len(older.messages) == 4
    assert older.kept == 2
    (end,) = [entry for entry in entries if entry.seq == older.covers]
    assert isinstance(end, e.TurnEnd)
    assert end.turn == "t2"


def test_the_newest_turn_is_kept_even_if_it_is_long() -> None:
    entries = session(turn(1), turn(2, *(e.Assistant(content="step") for _ in range(30))))
    older = divided(entries, keep=1)
    assert older is not None
    assert len(older.messages) == 2
    assert divided(session(turn(1))) is None
    assert divided(session()) is None


def test_the_token_limit_applies_as_well() -> None:
    entries = session(*(turn(number) for number in range(5)))
    older = older_part(entries, first=2, keep_tokens=4, keep_messages=100, size=one)
    assert older is not None
    assert older.kept == 4


def test_the_next_summary_starts_after_the_last_one() -> None:
    first = session(turn(1), turn(2), turn(3))
    older = divided(first)
    assert older is not None
    summary = e.Summary(content="so far", from_seq=older.from_seq, covers=older.covers)
    entries = session(turn(1), turn(2), turn(3), [summary], turn(4), turn(5))
    assert current_summary(entries) is not None
    again = divided(entries)
    assert again is not None
    assert again.earlier == "so far"
    assert again.messages[0] == UserMessage(text="question 3")
    assert again.from_seq == older.from_seq


def test_undo_and_clear_during_a_compaction_invalidate_it() -> None:
    entries = session(turn(1), turn(2), turn(3))
    older = divided(entries)
    assert older is not None
    at = entries[-1].seq + 1
    assert is_unchanged(older, [*entries, e.User(content="more", seq=at, turn="t4")])
    assert is_unchanged(older, [*entries, e.Undo(undone="t3", first=entries[-3].seq, messages=2, seq=at)])
    assert not is_unchanged(older, [*entries, e.Undo(undone="t1", first=entries[1].seq, messages=2, seq=at)])
    assert not is_unchanged(older, [*entries, e.Clear(seq=at)])


bodies = st.lists(conversation | conversation | marks, max_size=6)


def _can_be_in(number: int, entry: Entry) -> bool:
    """Leave out what no turn holds: the undoing of one that is not over, and a summary that ends anywhere."""
    if isinstance(entry, e.Undo):
        return entry.undone in {f"t{over}" for over in range(number)}
    return not isinstance(entry, e.Summary)


@given(st.lists(bodies, min_size=1, max_size=8), st.integers(1, 8))
def test_a_summary_replaces_the_older_part_and_leaves_the_rest_unchanged(turns: list[list[Entry]], keep: int) -> None:
    body = [
        msgspec.structs.replace(entry, turn=f"t{number}")
        for number, each in enumerate(turns)
        for entry in (e.User(content=f"question {number}"), *each, e.TurnEnd(outcome=e.TurnOutcome.ANSWERED))
        if _can_be_in(number, entry)
    ]
    entries = sealed([header(), *body])
    older = divided(entries, keep)
    if older is None:
        return
    summary = e.Summary(content="so far", from_seq=older.from_seq, covers=older.covers, seq=entries[-1].seq + 1)
    after = [*entries, summary]
    assert current_summary(after) == summary
    assert (
        history_for_model(after, 1_000)[1:]
        == history_for_model(entries, 1_000)[len(history_for_model(entries, 1_000)) - older.kept :]
    )
