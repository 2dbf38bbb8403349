import json

from hypothesis import given
from hypothesis import strategies as st

from gateway.conversation import AssistantMessage, Message, ToolCall, ToolMessage, ToolOutcome, UserMessage
from gateway.turns.compaction import summary_prompt

CALL = ToolCall(id="1", name="read_file", input={"path": "a.txt"})
SAID: list[Message] = [
    UserMessage(text="read it", sender="Ada", sender_id="42"),
    AssistantMessage(text="", tool_calls=(CALL,)),
    ToolMessage(outcomes=(ToolOutcome(id="1", output="milk"), ToolOutcome(id="2", output="no", is_error=True))),
    AssistantMessage(text="It says milk."),
]


def test_the_conversation_is_passed_as_json() -> None:
    prompt = summary_prompt("tea", SAID, model="m", fits=lambda _text: True)
    (message,) = prompt.messages
    assert isinstance(message, UserMessage)
    assert json.loads(message.text) == {
        "earlier_summary": "tea",
        "messages": [
            {"from": "Ada", "text": "read it"},
            {"tool_call": "read_file", "input": '{"path": "a.txt"}'},
            {"tool_result": "milk"},
            {"tool_failure": "no"},
            {"from": "assistant", "text": "It says milk."},
        ],
    }
    assert (prompt.tools, prompt.model) == ((), "m")


@given(st.lists(st.text(max_size=60), min_size=1))
def test_no_message_can_break_out_of_its_json_string(texts: list[str]) -> None:
    said = [UserMessage(text=text) for text in texts]
    (message,) = summary_prompt("", said, model=None, fits=lambda _text: True).messages
    assert isinstance(message, UserMessage)
    assert json.loads(message.text) == {"messages": [{"from": "user", "text": text} for text in texts]}


def test_long_texts_are_cut_before_messages_are_left_out() -> None:
    said: list[Message] = [UserMessage(text=f"{number} {'x' * 5_000}") for number in range(10)]
    (message,) = summary_prompt("", said, model=None, fits=lambda text: len(text) < 8_000).messages
    assert isinstance(message, UserMessage)
    assert len(message.text) < 8_000
    assert len(json.loads(message.text)["messages"]) == 10


def test_the_oldest_messages_are_left_out_if_cutting_is_not_enough() -> None:
    said: list[Message] = [UserMessage(text=f"number {number}") for number in range(1_000)]
    (message,) = summary_prompt("", said, model=None, fits=lambda text: len(text) < 5_000).messages
    assert isinstance(message, UserMessage)
    kept = json.loads(message.text)["messages"]
    assert kept[-1]["text"] == "number 999"
    assert 10 < len(kept) < 200
