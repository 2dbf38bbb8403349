"""The history rule by itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.contract import Sender
from gateway.conversation import AssistantMessage, Message, UserMessage
from gateway.openai_door.answer import AnswerText
from gateway.openai_door.history_rule import (
    KnownTurn,
    NewPrompt,
    Repetition,
    find_new_messages,
    known_turns,
    seed_entries,
)
from gateway.sessions import TurnOutcome, entries

WORDS = st.text(alphabet="ab ", min_size=1, max_size=4).filter(str.strip)
"""Few different texts, so that equal questions and answers are common."""
TURNS = st.lists(st.tuples(WORDS, WORDS), max_size=6)


def turn(number: int, asked: str, answer: str, outcome: TurnOutcome | None = TurnOutcome.ANSWERED) -> KnownTurn:
    return KnownTurn(id=str(number), message_id="", asked=asked, answer=answer, outcome=outcome)


def known(turns: list[tuple[str, str]]) -> list[KnownTurn]:
    return [turn(number, *each) for number, each in enumerate(turns)]


def history(turns: list[tuple[str, str]]) -> list[Message]:
    messages: list[Message] = []
    for asked, answer in turns:
        messages += [UserMessage(text=asked), AssistantMessage(text=answer)]
    return messages


@given(TURNS, st.lists(WORDS, min_size=1, max_size=3))
def test_after_the_whole_history_comes_what_is_new(turns: list[tuple[str, str]], new: list[str]) -> None:
    messages = [*history(turns), *(UserMessage(text=text) for text in new)]
    found = find_new_messages(messages, known(turns))
    assert isinstance(found, NewPrompt)
    assert [each.text for each in found.messages] == new
    assert (found.seed, found.replaces) == ((), None)


@given(TURNS, WORDS)
def test_without_an_answer_everything_is_new(turns: list[tuple[str, str]], new: str) -> None:
    found = find_new_messages([UserMessage(text=new)], known(turns))
    assert isinstance(found, NewPrompt)
    assert found.text == new


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=6), WORDS)
def test_an_empty_session_takes_over_everything(turns: list[tuple[str, str]], new: str) -> None:
    found = find_new_messages([*history(turns), UserMessage(text=new)], [])
    assert isinstance(found, NewPrompt)
    assert list(found.seed) == history(turns)
    # What it takes over is known afterwards, and the next request fits.
    seeded = known_turns(seed_entries(found.seed, Sender(id="owner")))
    assert [(each.asked.split(), each.answer.split()) for each in seeded] == [
        (asked.split(), answer.split()) for asked, answer in turns
    ]
    after = find_new_messages([*history(turns), UserMessage(text=new)], seeded)
    assert isinstance(after, NewPrompt)
    assert after.text == new


@given(st.lists(st.tuples(WORDS, WORDS), min_size=2, max_size=6), st.data())
def test_a_retry_is_never_run_again(turns: list[tuple[str, str]], data: st.DataObject) -> None:
    """The client has missed the last answer and sends the same request, which its library marks as a retry."""
    messages = [*history(turns[:-1]), UserMessage(text=turns[-1][0])]
    is_open = data.draw(st.booleans())
    session = known(turns)
    if is_open:
        session[-1] = turn(len(turns) - 1, turns[-1][0], "", None)
    found = find_new_messages(messages, session, is_retry=True)
    assert isinstance(found, Repetition)
    assert found.turn.asked.split() == turns[-1][0].split()


@given(TURNS, TURNS, WORDS)
def test_whatever_comes_it_fits_or_is_refused(
    sent: list[tuple[str, str]], stored: list[tuple[str, str]], new: str
) -> None:
    found = find_new_messages([*history(sent), UserMessage(text=new)], known(stored))
    match found:
        case NewPrompt():
            assert found.text == new, "nothing is left out"
        case Repetition():
            assert found.turn.asked.split() == new.split()
        case None:
            assert sent, "without a history, nothing contradicts the session"
            assert stored, "an empty session takes any history"


ONE, TWO = ("one", "1"), ("two", "2")


def place(messages: list[Message], *turns: KnownTurn) -> NewPrompt | Repetition | None:
    return find_new_messages(messages, turns)


def test_an_older_answer_with_another_question_does_not_fit() -> None:
    messages = [*history([ONE]), UserMessage(text="three")]
    assert place(messages, turn(0, *ONE), turn(1, *TWO)) is None


def test_an_older_answer_with_the_same_question_is_a_repetition() -> None:
    found = place([*history([ONE]), UserMessage(text="two")], turn(0, *ONE), turn(1, *TWO))
    assert found == Repetition(turn=turn(1, *TWO))


def test_the_question_tells_equal_answers_apart() -> None:
    found = place([*history([("one", "ok")]), UserMessage(text="two")], turn(0, "one", "ok"), turn(1, "two", "ok"))
    assert isinstance(found, Repetition)
    assert found.turn.id == "1"


def test_a_question_that_the_client_has_changed_does_not_matter() -> None:
    found = place([*history([("one with a context", "1")]), UserMessage(text="two")], turn(0, *ONE))
    assert isinstance(found, NewPrompt)


@pytest.mark.parametrize("outcome", [TurnOutcome.FAILED, TurnOutcome.STOPPED, TurnOutcome.INTERRUPTED])
def test_a_message_without_an_answer_is_run_again(outcome: TurnOutcome) -> None:
    failed = turn(1, "two", "", outcome)
    for before in (history([ONE]), []):
        messages: list[Message] = [*before, UserMessage(text="two")]
        found = place(messages, turn(0, *ONE), failed)
        assert found == NewPrompt(messages=(UserMessage(text="two"),), replaces="1")


def test_of_several_failed_messages_only_the_last_is_run_again() -> None:
    failed = [turn(0, "one", "", TurnOutcome.FAILED), turn(1, "two", "", TurnOutcome.FAILED)]
    found = place([UserMessage(text="one"), UserMessage(text="two")], *failed)
    assert found == NewPrompt(messages=(UserMessage(text="two"),), replaces="1")


def test_messages_that_were_sent_before_are_not_sent_again() -> None:
    found = place([UserMessage(text="one"), UserMessage(text="two")], turn(0, "one", "", TurnOutcome.FAILED))
    assert found == NewPrompt(messages=(UserMessage(text="two"),))


def test_the_beginning_of_the_last_answer_is_enough() -> None:
    found = place([*history([("one", "The first")]), UserMessage(text="two")], turn(0, "one", "The first half."))
    assert isinstance(found, NewPrompt)
    assert place([*history([("one", "The end")]), UserMessage(text="two")], turn(0, "one", "The first half.")) is None


def test_a_client_may_stop_before_the_first_word() -> None:
    found = place([*history([("one", "")]), UserMessage(text="two")], turn(0, *TWO), turn(1, "one", "The first half."))
    assert isinstance(found, NewPrompt)
    assert place([*history([("other", "")]), UserMessage(text="two")], turn(0, "one", "The first half.")) is None


def test_undone_turns_are_unknown() -> None:
    session = [
        entries.User(content="one", turn="a"),
        entries.Assistant(content="1", turn="a"),
        entries.TurnEnd(outcome=TurnOutcome.ANSWERED, turn="a"),
        entries.Undo(undone="a", first=1, messages=2),
        entries.User(content="two", turn="b"),
    ]
    assert [each.id for each in known_turns(session)] == ["b"]


@given(st.lists(st.tuples(st.lists(st.text(max_size=3), max_size=4), st.text(max_size=3)), max_size=4))
def test_pieces_and_steps_make_the_same_text(steps: list[tuple[list[str], str]]) -> None:
    """A stream and a stored answer have the same words."""
    streamed, stored = AnswerText(), AnswerText()
    sent: list[str] = []
    for deltas, rest in steps:
        sent += [streamed.add(delta) for delta in deltas]
        whole = "".join(deltas) + rest
        sent.append(streamed.end_step(whole))
        stored.end_step(whole)
    assert "".join(sent) == streamed.text
    assert streamed.text.split() == stored.text.split()
