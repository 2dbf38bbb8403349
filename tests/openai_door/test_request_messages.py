"""Whatever a client sends is converted, or refused in OpenAI's format."""

import contextlib

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.responses import HttpError
from gateway.openai_door.request_messages import chat_messages, chat_tools, input_messages, response_tools
from gateway.openai_door.types import ChatRequest, ResponseRequest

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "url"]), inner, max_size=3),
    max_leaves=6,
)
PARTS = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "input_text", "image_url", "input_image", "refusal", "file", "?"])},
        optional={
            "text": st.text(max_size=5),
            "image_url": st.text(max_size=9) | st.just({"url": "data:;base64,AA"}),
        },
    ),
    max_size=2,
)
IDS = st.sampled_from(["1", "2", ""])
ARGUMENTS = st.sampled_from(["{}", "[", ""])
FUNCTION = st.fixed_dictionaries({"name": st.text(max_size=3)}, optional={"arguments": ARGUMENTS})
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "function", "?"])},
    optional={
        "content": st.none() | st.text(max_size=9) | PARTS,
        "tool_calls": st.lists(st.fixed_dictionaries({"id": IDS, "function": FUNCTION}), max_size=2),
        "function_call": FUNCTION,
        "tool_call_id": IDS,
        "name": st.text(max_size=3),
    },
)
ITEM = st.fixed_dictionaries(
    {"type": st.sampled_from(["message", "function_call", "function_call_output", "?"])},
    optional={
        "role": st.sampled_from(["system", "user", "assistant", "?"]),
        "content": st.none() | st.text(max_size=9) | PARTS,
        "call_id": IDS,
        "name": st.text(max_size=3),
        "arguments": ARGUMENTS,
        "output": st.none() | st.text(max_size=9) | PARTS,
    },
)


@given(st.lists(MESSAGE, max_size=6), JSON)
def test_any_messages_are_converted_or_refused(messages: list[object], choice: object) -> None:
    request = msgspec.convert({"model": "main", "messages": messages, "tool_choice": choice}, ChatRequest)
    with contextlib.suppress(HttpError):
        found = chat_messages(request.messages)
        assert found.messages
    with contextlib.suppress(HttpError):
        chat_tools(request)


@given(st.lists(ITEM, max_size=6), JSON)
def test_any_input_is_converted_or_refused(items: list[object], choice: object) -> None:
    request = msgspec.convert({"model": "main", "input": items, "tool_choice": choice}, ResponseRequest)
    with contextlib.suppress(HttpError):
        assert input_messages(request).messages
    with contextlib.suppress(HttpError):
        response_tools(request)
