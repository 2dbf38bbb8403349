from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.agent.providers.wire import to_anthropic, to_openai
from gateway.conversation import AssistantMessage, Message, Picture, ToolCall, ToolMessage, ToolOutcome, UserMessage
from gateway.sessions.entries import Entry, User
from gateway.sessions.history import history_for_model
from tests.agent.wire.parse import from_anthropic, from_openai
from tests.agent.wire.request_rules import anthropic_complaints, openai_complaints
from tests.sessions.samples import conversation, header, marks, sealed

words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).filter(str.strip)
maybe = st.one_of(st.just(""), words)
outputs = words.filter(lambda text: not text.startswith("Error: "))


@st.composite
def turns(draw: st.DrawFn) -> list[Message]:
    """Make turns as the fold does: a question, steps with their outcomes, an answer."""
    messages: list[Message] = []
    for turn in range(draw(st.integers(1, 4))):
        messages.append(UserMessage(text=draw(words)))
        for step in range(draw(st.integers(0, 2))):
            ids = [f"call-{turn}-{step}-{number}" for number in range(draw(st.integers(1, 3)))]
            calls = tuple(ToolCall(id=each, name="look", input={"at": draw(words)}) for each in ids)
            outcomes = tuple(ToolOutcome(id=each, output=draw(outputs), is_error=draw(st.booleans())) for each in ids)
            messages += [AssistantMessage(text=draw(maybe), tool_calls=calls), ToolMessage(outcomes=outcomes)]
        messages.append(AssistantMessage(text=draw(words)))
    return messages


@given(turns())
def test_both_formats_convert_back_to_the_same_conversation(messages: list[Message]) -> None:
    assert from_anthropic(to_anthropic(messages)) == messages
    assert from_openai(to_openai(messages)) == messages


@given(st.lists(conversation | marks, max_size=40), st.data())
def test_every_transcript_cut_anywhere_is_a_valid_request(entries: list[Entry], data: st.DataObject) -> None:
    """As after a crash at any point: the next message must still get its answer."""
    cut = data.draw(st.integers(0, len(entries)))
    written = sealed([header(), *entries[:cut], User(content="And now?", turn="t9")])
    size = data.draw(st.integers(1, 20))
    messages = history_for_model(written, size, turn="t9")
    assert list(openai_complaints({"messages": to_openai(messages)})) == []
    assert list(anthropic_complaints({"messages": to_anthropic(messages), "max_tokens": 1})) == []


@given(turns())
def test_anthropic_gets_alternating_roles_and_each_result_right_after_its_call(messages: list[Message]) -> None:
    shapes = to_anthropic(messages)
    assert [shape["role"] for shape in shapes] == ["user", "assistant"] * (len(shapes) // 2)
    for before, after in pairwise(shapes):
        called = [block["id"] for block in before["content"] if block["type"] == "tool_use"]
        answered = [block["tool_use_id"] for block in after["content"] if block["type"] == "tool_result"]
        assert called == answered
    assert all(block["text"].strip() for shape in shapes for block in shape["content"] if block["type"] == "text")


@given(turns())
def test_openai_gets_one_tool_message_for_each_call_right_after_it(messages: list[Message]) -> None:
    shapes = to_openai(messages)
    for at, shape in enumerate(shapes):
        ids = [call["id"] for call in shape.get("tool_calls", ())]
        assert [follow.get("tool_call_id") for follow in shapes[at + 1 : at + 1 + len(ids)]] == ids


def test_empty_messages_get_a_placeholder() -> None:
    blank: list[Message] = [UserMessage(text=" "), AssistantMessage(text="")]
    assert [shape["content"] for shape in to_openai(blank)] == ["(nothing)", "(nothing)"]
    assert [shape["content"][0]["text"] for shape in to_anthropic(blank)] == ["(nothing)", "(nothing)"]


def test_consecutive_user_messages_are_merged_for_anthropic() -> None:
    said: list[Message] = [UserMessage(text="one"), UserMessage(text="two")]
    assert to_anthropic(said) == [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}
    ]
    assert from_anthropic(to_anthropic(said)) == said


def test_pictures_come_before_the_text() -> None:
    said: list[Message] = [
        UserMessage(
            text="look", pictures=(Picture(name="a.png", file="s/1-a.png", media_type="image/png", data=b"png"),)
        )
    ]
    source = {"type": "base64", "media_type": "image/png", "data": "cG5n"}
    text = {"type": "text", "text": "look"}
    assert to_anthropic(said) == [{"role": "user", "content": [{"type": "image", "source": source}, text]}]
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,cG5n"}}
    assert to_openai(said) == [{"role": "user", "content": [url, text]}]
    assert from_openai(to_openai(said)) == from_anthropic(to_anthropic(said)) == [UserMessage(text="look")]


def test_a_message_with_an_unseen_picture_is_plain_text() -> None:
    said: list[Message] = [
        UserMessage(text="look", pictures=(Picture(name="a.png", file="s/1-a.png", media_type="image/png"),))
    ]
    assert to_openai(said) == [{"role": "user", "content": "look"}]
    assert to_anthropic(said) == [{"role": "user", "content": [{"type": "text", "text": "look"}]}]
