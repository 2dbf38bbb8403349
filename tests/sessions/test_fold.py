from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialogue import AssistantMessage, Message, ToolMessage, ToolOutcome, UserMessage
from gateway.sessions import entries as e
from gateway.sessions.entries import Entry, SessionStatus
from gateway.sessions.fold import INTERRUPTED, fold, history, last_turn, lines, step_at_hand
from tests.sessions.samples import START, conversation, dialogue, header, marks, sealed

transcripts = st.lists(conversation | conversation | marks, max_size=60).map(lambda said: sealed([header(), *said]))
sizes = st.integers(min_value=1, max_value=12)


def texts(messages: list[Message]) -> list[str]:
    return [message.text for message in messages if not isinstance(message, ToolMessage)]


def assert_legal(messages: list[Message]) -> None:
    """Check what every provider insists on."""
    if messages:
        assert isinstance(messages[0], UserMessage)
    for at, message in enumerate(messages):
        calls = [call.id for call in message.tool_calls] if isinstance(message, AssistantMessage) else []
        after = messages[at + 1] if at + 1 < len(messages) else None
        answered = [outcome.id for outcome in after.outcomes] if isinstance(after, ToolMessage) else []
        assert answered == calls
        assert len(set(calls)) == len(calls)
        if isinstance(message, AssistantMessage):
            assert message.text or message.tool_calls


@given(transcripts, sizes)
def test_any_history_is_legal_and_within_the_window(entries: list[Entry], size: int) -> None:
    messages = history(entries, size)
    assert_legal(messages)
    assert len(messages) <= size


@given(transcripts, sizes)
def test_the_current_turn_is_always_whole(entries: list[Entry], size: int) -> None:
    """It cannot start with anything but its user message, as long as its entries were written in order."""
    current = [e.User(content="now", turn="now"), e.ToolUse(tool_use_id="z", name="x", input={}, turn="now")]
    messages = history([*entries, *current], size, turn="now")
    assert_legal(messages)
    assert texts(messages)[-2:] == ["now", ""]
    assert len(messages) <= size + 3


@given(transcripts, st.integers(min_value=0, max_value=9))
def test_lines_are_what_people_said_and_nothing_else(entries: list[Entry], limit: int) -> None:
    said = {(type(entry), entry.content) for entry in entries if isinstance(entry, e.User | e.Assistant)}
    shown = lines(entries, limit)
    assert len(shown) <= limit
    assert {(e.User if line.role == "user" else e.Assistant, line.text) for line in shown} <= said


@given(transcripts)
def test_a_state_counts_within_what_was_written(entries: list[Entry]) -> None:
    state = fold(entries)
    assert state.seq == len(entries)
    assert 0 <= state.messages <= len(entries)
    assert len(state.title) <= 80


def test_a_dialogue_is_shown_to_the_model_in_full() -> None:
    assert history(sealed(dialogue(1)), 50) == [
        UserMessage(text="question of t1"),
        AssistantMessage(text="", tool_calls=history(sealed(dialogue(1)), 50)[1].tool_calls),  # type: ignore[union-attr]  # The next line says what it is.
        ToolMessage(outcomes=(ToolOutcome(id="call", output="noon"),)),
        AssistantMessage(text="answer of t1"),
    ]


def test_consecutive_tool_calls_are_one_message_with_the_text_before_them() -> None:
    entries: list[Entry] = [
        header(),
        e.User(content="both"),
        e.Assistant(content="I look."),
        e.ToolUse(tool_use_id="a", name="x", input={}),
        e.ToolUse(tool_use_id="b", name="y", input={}),
        e.ToolResult(tool_use_id="b", output="second"),
        e.ToolResult(tool_use_id="a", output="first"),
    ]
    _, step, outcomes = history(sealed(entries), 50)
    assert isinstance(step, AssistantMessage)
    assert (step.text, [call.id for call in step.tool_calls]) == ("I look.", ["a", "b"])
    assert outcomes == ToolMessage(outcomes=(ToolOutcome(id="a", output="first"), ToolOutcome(id="b", output="second")))


def test_a_call_cut_short_says_that_it_may_have_taken_effect() -> None:
    entries: list[Entry] = [header(), e.User(content="go"), e.ToolUse(tool_use_id="a", name="x", input={})]
    after_a_crash = [*entries, e.User(content="and now?")]
    outcome = ToolOutcome(id="a", output=INTERRUPTED, is_error=True)
    assert history(sealed(after_a_crash), 50)[2:] == [ToolMessage(outcomes=(outcome,)), UserMessage(text="and now?")]


def test_a_result_whose_call_was_lost_is_left_out() -> None:
    entries: list[Entry] = [header(), e.User(content="go"), e.ToolResult(tool_use_id="a", output="done")]
    assert history(sealed(entries), 50) == [UserMessage(text="go")]


def test_the_window_drops_the_oldest_whole_turns() -> None:
    messages = history(sealed(dialogue(5)), 10)
    assert texts(messages)[0] == "question of t4"
    assert len(messages) == 8


def test_a_turn_longer_than_the_window_keeps_its_question() -> None:
    steps: list[Entry] = []
    for number in range(30):
        steps += [
            e.ToolUse(tool_use_id=str(number), name="x", input={}),
            e.ToolResult(tool_use_id=str(number), output="ok"),
        ]
    messages = history(sealed([header(), e.User(content="long"), *steps, e.Assistant(content="done")]), 10)
    assert_legal(messages)
    assert texts(messages)[0] == "long"
    assert texts(messages)[-1] == "done"
    assert 8 <= len(messages) <= 10


def test_earlier_messages_can_be_shortened_but_not_the_current_turn() -> None:
    messages = history(sealed(dialogue(2)), 50, turn="t2", max_chars=4)
    assert texts(messages) == ["que…", "", "ans…", "question of t2", "", "answer of t2"]
    assert messages[2] == ToolMessage(outcomes=(ToolOutcome(id="call", output="noon"),))


def test_history_starts_after_the_last_clear() -> None:
    entries = sealed([*dialogue(2), e.Clear(), e.User(content="afresh")])
    assert history(entries, 50) == [UserMessage(text="afresh")]
    assert [line.text for line in lines(entries, 9)] == ["afresh"]
    assert fold(entries).messages == 1


def test_an_undone_turn_does_not_count() -> None:
    undo = last_turn(sealed(dialogue(2)))
    assert undo == e.Undo(undone="t2", first=8, messages=2)
    entries = sealed([*dialogue(2), undo])
    assert "question of t2" not in texts(history(entries, 50))
    assert [line.text for line in lines(entries, 9)] == ["question of t1", "answer of t1"]
    assert (fold(entries).messages, fold(entries).turns) == (2, 1)


def test_undoing_goes_back_turn_by_turn_until_nothing_is_left() -> None:
    entries = sealed(dialogue(2))
    for turn in ("t2", "t1"):
        undo = last_turn(entries)
        assert undo is not None
        assert undo.undone == turn
        entries = [*entries, e.seal(undo, seq=len(entries) + 1, now=START)[0]]
    assert last_turn(entries) is None
    assert history(entries, 50) == []


def test_a_summary_stands_in_place_of_what_it_covers() -> None:
    entries = sealed([*dialogue(3), e.Summary(content="they talked", from_seq=1, covers=12)])
    messages = history(entries, 50)
    assert texts(messages)[0].endswith("they talked")
    assert texts(messages)[1] == "question of t3"
    assert isinstance(messages[0], UserMessage)


def test_a_summary_stays_however_much_is_said_after_it() -> None:
    before = dialogue(1)
    after = [*before, e.Summary(content="they talked", from_seq=1, covers=len(before)), *dialogue(9)[7:]]
    messages = history(sealed(after), 10)
    assert len(messages) <= 10
    assert texts(messages)[0].endswith("they talked")
    assert texts(messages)[-1] == "answer of t9"


def test_the_newest_summary_counts() -> None:
    older = e.Summary(content="older", from_seq=1, covers=7)
    newer = e.Summary(content="newer", from_seq=1, covers=12)
    messages = history(sealed([*dialogue(2), older, newer, e.User(content="go on")]), 50)
    assert texts(messages) == ["[Summary of the earlier conversation]\n\nnewer", "go on"]


@pytest.mark.parametrize(
    "afterwards",
    [
        [e.Summary(content="splits a turn", from_seq=1, covers=9)],
        [e.Summary(content="speaks of what is to come", from_seq=1, covers=99)],
        [e.Summary(content="is the wrong way round", from_seq=9, covers=7)],
        [e.Summary(content="tells what was undone", from_seq=1, covers=12), e.Undo(undone="t2", first=8, messages=2)],
    ],
)
def test_a_summary_that_does_not_hold_is_passed_over(afterwards: list[Entry]) -> None:
    valid = e.Summary(content="valid", from_seq=1, covers=7)
    messages = history(sealed([*dialogue(2), valid, *afterwards, e.User(content="go on")]), 50)
    assert texts(messages)[0].endswith("valid")


def test_a_summary_of_what_was_cleared_is_passed_over() -> None:
    late = e.Summary(content="tells what was cleared", from_seq=1, covers=12)
    assert history(sealed([*dialogue(2), e.Clear(), late, e.User(content="go on")]), 50) == [UserMessage(text="go on")]


def test_a_state_follows_every_change() -> None:
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


def test_a_state_cannot_be_made_without_a_header() -> None:
    with pytest.raises(TypeError, match="header"):
        fold(sealed([e.User(content="hi")]))


def test_what_models_used_adds_up_over_undoing_clearing_and_summing_up() -> None:
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
            ]
        )
    )
    assert (state.input_tokens, state.cached_tokens, state.output_tokens, state.cost_micros) == (200, 80, 20, 14)


def test_the_step_at_hand_has_its_own_calls_and_what_was_asked_about_them() -> None:
    """A model may give the same id in two steps: what was allowed then is not allowed now."""
    use = e.ToolUse(tool_use_id="c", name="shell", input={}, turn="t")
    other = e.ToolUse(tool_use_id="d", name="shell", input={"x": 1}, turn="t")
    asked = e.Approval(approval_id="q", tool_use_id="c", question="May I?", turn="t")
    entries: list[Entry] = [
        e.Assistant(content="first", turn="t"),
        use,
        e.Approval(approval_id="p", tool_use_id="c", question="May I?", turn="t"),
        e.Approval(approval_id="p", tool_use_id="c", decision="approved", turn="t"),
        e.ToolResult(tool_use_id="c", output="done", turn="t"),
        e.Assistant(content="second", turn="t"),
        use,
        other,
        asked,
        e.Approval(approval_id="q", tool_use_id="c", decision="denied", turn="other"),
    ]
    calls, approvals = step_at_hand(entries, "t")
    assert list(calls) == ["c", "d"]
    assert approvals == {"c": asked}
    denied = e.Approval(approval_id="q", tool_use_id="c", decision="denied", turn="t")
    late = e.Approval(approval_id="q", tool_use_id="c", decision="approved", turn="t")
    assert step_at_hand([*entries, denied, late], "t")[1] == {"c": denied}
