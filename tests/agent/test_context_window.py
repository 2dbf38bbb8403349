from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.agent.context_window import fit
from gateway.conversation import AssistantMessage, Message, ToolCall, ToolMessage, ToolOutcome, UserMessage

Size = Callable[[Message], int]

SUMMARY = UserMessage(text="what was before", is_ours=True)


def size(message: Message) -> int:
    """Count a token for each character, and one for the message."""
    if isinstance(message, ToolMessage):
        return 1 + sum(len(outcome.output) for outcome in message.outcomes)
    return 1 + len(message.text)


def step(name: str, output: str) -> list[Message]:
    call = ToolCall(id=name, name="look", input={})
    return [
        AssistantMessage(text="", tool_calls=(call,)),
        ToolMessage(outcomes=(ToolOutcome(id=name, output=output),)),
    ]


@st.composite
def turns(draw: st.DrawFn) -> list[Message]:
    texts = st.text("ab", min_size=1, max_size=40)
    messages: list[Message] = []
    for turn in range(draw(st.integers(0, 5))):
        messages.append(UserMessage(text=draw(texts)))
        for number in range(draw(st.integers(0, 3))):
            messages += step(f"{turn}-{number}", draw(st.text("ab", max_size=3_000)))
        messages.append(AssistantMessage(text=draw(texts)))
    return messages


@given(turns(), turns(), st.sampled_from([[], [SUMMARY]]), st.integers(0, 5_000))
def test_a_fitted_conversation_is_valid_for_both_apis(
    before: list[Message], turn: list[Message], summary: list[Message], budget: int
) -> None:
    """It begins with a user's message, every call is followed by its outcomes, and the turn is whole."""
    fitted = fit([*summary, *before], turn, size=size, budget=budget)
    assert not fitted or isinstance(fitted[0], UserMessage)
    for at, message in enumerate(fitted):
        calls = [call.id for call in message.tool_calls] if isinstance(message, AssistantMessage) else []
        follows = fitted[at + 1] if calls else None
        assert not calls or (isinstance(follows, ToolMessage) and [each.id for each in follows.outcomes] == calls)
    kept = fitted[len(fitted) - len(turn) :]
    assert [type(message) for message in kept] == [type(message) for message in turn]
    spoken = [message for message in turn if not isinstance(message, ToolMessage)]
    assert [message for message in kept if not isinstance(message, ToolMessage)] == spoken


@given(turns(), turns(), st.integers(0, 5_000))
def test_a_conversation_fits_unless_its_turn_alone_is_too_long(
    before: list[Message], turn: list[Message], budget: int
) -> None:
    fitted = fit(before, turn, size=size, budget=budget)
    assert sum(map(size, fitted)) <= budget or len(fitted) == len(turn)


@given(turns(), turns())
def test_a_conversation_that_fits_is_unchanged(before: list[Message], turn: list[Message]) -> None:
    assert fit(before, turn, size=size, budget=1_000_000) == [*before, *turn]


def test_the_oldest_messages_go_first_and_the_summary_last() -> None:
    before: list[Message] = [SUMMARY]
    for number in range(4):
        before += [UserMessage(text=f"question {number}"), AssistantMessage(text="answer")]
    now: list[Message] = [UserMessage(text="now")]
    assert fit(before, now, size=size, budget=60) == [SUMMARY, *before[-4:], *now]
    assert fit(before, now, size=size, budget=25) == [SUMMARY, *now]
    assert fit(before, now, size=size, budget=10) == now


@pytest.mark.parametrize("steps", [2, 3, 10])
def test_the_newest_result_is_the_last_to_be_shortened(steps: int) -> None:
    turn: list[Message] = [UserMessage(text="go")]
    for number in range(steps):
        turn += step(str(number), "x" * 5_000)
    fitted = fit([], turn, size=size, budget=9_000)
    results = [message.outcomes[0].output for message in fitted if isinstance(message, ToolMessage)]
    assert results[-1] == "x" * 5_000
    assert results[0].startswith("x" * 60)
    assert "left out to save room" in results[0]


def test_a_growing_request_mostly_starts_like_the_one_before_it() -> None:
    """Or else the provider's cache is of no use."""
    turn: list[Message] = [UserMessage(text="go")]
    requests = []
    for number in range(40):
        turn += step(str(number), "x" * 1_000)
        requests.append(fit([], turn, size=size, budget=20_000))
    alike = sum(after[: len(before)] == before for before, after in pairwise(requests))
    assert alike >= 25
