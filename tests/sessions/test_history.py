"""The model gets a valid conversation from any transcript."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.conversation import AssistantMessage, Message, ToolMessage, ToolOutcome, UserMessage
from gateway.sessions import entries as e
from gateway.sessions.entries import Entry
from gateway.sessions.history import history_for_model
from gateway.sessions.turn_progress import INTERRUPTED
from tests.sessions.samples import dialogue, header, sealed, texts_of, transcripts

sizes = st.integers(min_value=1, max_value=12)


def assert_legal(messages: list[Message]) -> None:
    """Check the rules that every provider enforces."""
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
def test_every_history_is_valid_and_within_the_window(entries: list[Entry], size: int) -> None:
    messages = history_for_model(entries, size)
    assert_legal(messages)
    assert len(messages) <= size


@given(transcripts, sizes)
def test_the_current_turn_is_always_whole(entries: list[Entry], size: int) -> None:
    """It starts with its user message if its entries were written in order."""
    current = [e.User(content="now", turn="now"), e.ToolUse(tool_use_id="z", name="x", input={}, turn="now")]
    messages = history_for_model([*entries, *current], size, turn="now")
    assert_legal(messages)
    assert texts_of(messages)[-2:] == ["now", ""]
    assert len(messages) <= size + 3


def test_the_model_sees_the_whole_dialogue() -> None:
    assert history_for_model(sealed(dialogue(1)), 50) == [
        UserMessage(text="question of t1"),
        AssistantMessage(text="", tool_calls=history_for_model(sealed(dialogue(1)), 50)[1].tool_calls),  # type: ignore[union-attr]  # The next line says what it is.
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
    _, step, outcomes = history_for_model(sealed(entries), 50)
    assert isinstance(step, AssistantMessage)
    assert (step.text, [call.id for call in step.tool_calls]) == ("I look.", ["a", "b"])
    assert outcomes == ToolMessage(outcomes=(ToolOutcome(id="a", output="first"), ToolOutcome(id="b", output="second")))


def test_an_interrupted_call_gets_a_result_that_says_so() -> None:
    entries: list[Entry] = [header(), e.User(content="go"), e.ToolUse(tool_use_id="a", name="x", input={})]
    after_a_crash = [*entries, e.User(content="and now?")]
    outcome = ToolOutcome(id="a", output=INTERRUPTED, is_error=True)
    assert history_for_model(sealed(after_a_crash), 50)[2:] == [
        ToolMessage(outcomes=(outcome,)),
        UserMessage(text="and now?"),
    ]


def test_a_result_without_its_call_is_left_out() -> None:
    entries: list[Entry] = [header(), e.User(content="go"), e.ToolResult(tool_use_id="a", output="done")]
    assert history_for_model(sealed(entries), 50) == [UserMessage(text="go")]


def test_the_window_drops_the_oldest_whole_turns() -> None:
    messages = history_for_model(sealed(dialogue(5)), 10)
    assert texts_of(messages)[0] == "question of t4"
    assert len(messages) == 8


def test_a_turn_longer_than_the_window_keeps_its_question() -> None:
    steps: list[Entry] = []
    for number in range(30):
        steps += [
            e.ToolUse(tool_use_id=str(number), name="x", input={}),
            e.ToolResult(tool_use_id=str(number), output="ok"),
        ]
    messages = history_for_model(sealed([header(), e.User(content="long"), *steps, e.Assistant(content="done")]), 10)
    assert_legal(messages)
    assert texts_of(messages)[0] == "long"
    assert texts_of(messages)[-1] == "done"
    assert 8 <= len(messages) <= 10


def test_earlier_messages_can_be_shortened_but_not_the_current_turn() -> None:
    messages = history_for_model(sealed(dialogue(2)), 50, turn="t2", max_chars=4)
    assert texts_of(messages) == ["que…", "", "ans…", "question of t2", "", "answer of t2"]
    assert messages[2] == ToolMessage(outcomes=(ToolOutcome(id="call", output="noon"),))
