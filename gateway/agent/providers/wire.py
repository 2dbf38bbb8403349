"""A conversation in the shapes of the two big APIs, and back, but for pictures. The SDKs are handed what this makes.

Anthropic: roles alternate, tool calls are blocks of the assistant, their results are blocks of the user that follows.
OpenAI: tool calls are a field of the assistant, each result is a message of its own with the role `tool`.
"""

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2s
from typing import Any, TypeVar

from msgspec.structs import replace

from gateway.agent.senders import with_sender
from gateway.conversation import (
    AssistantMessage,
    Json,
    Message,
    Picture,
    ToolCall,
    ToolMessage,
    ToolOutcome,
    UserMessage,
)

__all__ = ["ApiObject", "from_anthropic", "from_openai", "to_anthropic", "to_openai", "without_unseen_images"]

ApiObject = dict[str, Any]  # Any: the shapes are the APIs' own, and differ from message to message.

_USABLE_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")

EMPTY_TEXT = "(nothing)"
"""Neither API takes a message without text."""
ERROR_PREFIX = "Error: "
"""How OpenAI, whose results have no such field, is told that a tool has failed."""


def without_unseen_images(messages: Iterable[Message], *, sees_images: bool) -> Iterable[Message]:
    """Leave out the pictures for a model that does not see; the text names them."""
    for message in messages:
        if isinstance(message, UserMessage) and message.pictures and not sees_images:
            yield replace(message, pictures=())
        else:
            yield message


def to_anthropic(messages: Iterable[Message], *, model: str = "") -> list[ApiObject]:
    """Shape for `model`, which is shown its own thoughts again; other models' are left out."""
    shapes: list[ApiObject] = []
    for message in _distinct(messages):
        role = "assistant" if isinstance(message, AssistantMessage) else "user"
        blocks = _thought(message, model) or _blocks(message)
        if shapes and shapes[-1]["role"] == role:
            shapes[-1]["content"] += blocks
        else:
            shapes.append({"role": role, "content": blocks})
    return shapes


def _thought(message: Message, model: str) -> list[ApiObject]:
    """Return a step as it came, where its thoughts are known and its calls are the ones that were run."""
    if not isinstance(message, AssistantMessage):
        return []
    for thought in message.thoughts:
        content: Any = thought.shape.get("content")  # Any: it is the API's own.
        if thought.model == model and isinstance(content, list):
            called = [block["id"] for block in content if block["type"] == "tool_use"]
            if called == [call.id for call in message.tool_calls]:
                return [*content]
    return []


def _distinct(messages: Iterable[Message]) -> Iterator[Message]:
    """Give every call an id of its own that both APIs take: some endpoints begin to count anew with each step."""
    used: set[str] = set()
    ids: list[str] = []
    for message in messages:
        match message:
            case AssistantMessage(tool_calls=calls) if calls:
                ids = [_own_id(call.id, used) for call in calls]
                renamed = tuple(_with_id(call, own) for call, own in zip(calls, ids, strict=True))
                yield replace(message, tool_calls=renamed)
            case ToolMessage(outcomes=outcomes):
                yield ToolMessage(outcomes=tuple(_with_id(each, own) for each, own in zip(outcomes, ids, strict=True)))
            case _:
                yield message


C = TypeVar("C", ToolCall, ToolOutcome)


def _with_id(one: C, own: str) -> C:
    return one if one.id == own else replace(one, id=own)


def _own_id(call_id: str, used: set[str]) -> str:
    """Return the id itself, or one made of it, always the same: what was cached stays valid."""
    own, number = call_id, 1
    while own in used or not _USABLE_ID.fullmatch(own):
        own = f"call_{blake2s(f'{call_id}#{number}'.encode(), digest_size=16).hexdigest()}"
        number += 1
    used.add(own)
    return own


def _blocks(message: Message) -> list[ApiObject]:
    match message:
        case UserMessage():
            # Anthropic recommends pictures before the words about them.
            return [*map(_image, _shown(message)), {"type": "text", "text": _some(with_sender(message))}]
        case AssistantMessage():
            calls = [
                {"type": "tool_use", "id": call.id, "name": _name(call.name), "input": call.input}
                for call in message.tool_calls
            ]
            text = message.text if message.text.strip() or calls else EMPTY_TEXT
            return [*([{"type": "text", "text": text}] if text.strip() else []), *calls]
        case ToolMessage():
            return [
                {
                    "type": "tool_result",
                    "tool_use_id": outcome.id,
                    "content": outcome.output or EMPTY_TEXT,
                    "is_error": outcome.is_error,
                }
                for outcome in message.outcomes
            ]


def _shown(message: UserMessage) -> list[Picture]:
    return [picture for picture in message.pictures if picture.data]


def _image(picture: Picture) -> ApiObject:
    data = b64encode(picture.data).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": picture.media_type, "data": data}}


def _name(tool: str) -> str:
    """Return a name that both APIs take: a model may have called what no tool can be called."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", tool)[:64] or "_"


def _some(text: str) -> str:
    return text if text.strip() else EMPTY_TEXT


def from_anthropic(shapes: Sequence[ApiObject]) -> list[Message]:
    messages: list[Message] = []
    for shape in shapes:
        blocks = shape["content"]
        texts = [block["text"] for block in blocks if block["type"] == "text"]
        if shape["role"] == "assistant":
            calls = tuple(
                ToolCall(id=block["id"], name=block["name"], input=block["input"])
                for block in blocks
                if block["type"] == "tool_use"
            )
            messages.append(AssistantMessage(text="\n\n".join(texts), tool_calls=calls))
            continue
        outcomes = tuple(
            ToolOutcome(id=block["tool_use_id"], output=block["content"], is_error=block.get("is_error", False))
            for block in blocks
            if block["type"] == "tool_result"
        )
        messages += [ToolMessage(outcomes=outcomes)] if outcomes else []
        messages += [UserMessage(text=text) for text in texts]
    return messages


def to_openai(messages: Iterable[Message], *, model: str = "") -> list[ApiObject]:
    """Shape for `model`, which is shown its own thoughts again; other models' are left out."""
    return [shape for message in _distinct(messages) for shape in _openai(message, model)]


def _openai(message: Message, model: str) -> list[ApiObject]:
    match message:
        case UserMessage():
            return [{"role": "user", "content": _content(message)}]
        case AssistantMessage(tool_calls=()):
            return [{"role": "assistant", "content": _some(message.text)}]
        case AssistantMessage():
            calls = [*map(_call, message.tool_calls)]
            thoughts = {
                key: value for each in message.thoughts if each.model == model for key, value in each.shape.items()
            }
            return [{"role": "assistant", "content": message.text or None, "tool_calls": calls, **thoughts}]
        case ToolMessage():
            return [
                {
                    "role": "tool",
                    "tool_call_id": outcome.id,
                    "content": f"{ERROR_PREFIX if outcome.is_error else ''}{outcome.output or EMPTY_TEXT}",
                }
                for outcome in message.outcomes
            ]


def _content(message: UserMessage) -> str | list[ApiObject]:
    """Return plain text where there is nothing to see: not every compatible server takes a list."""
    text = _some(with_sender(message))
    images = [{"type": "image_url", "image_url": {"url": _data_url(picture)}} for picture in _shown(message)]
    return [*images, {"type": "text", "text": text}] if images else text


def _data_url(picture: Picture) -> str:
    return f"data:{picture.media_type};base64,{b64encode(picture.data).decode()}"


def _call(call: ToolCall) -> ApiObject:
    arguments = json.dumps(call.input, ensure_ascii=False)
    return {"id": call.id, "type": "function", "function": {"name": _name(call.name), "arguments": arguments}}


def from_openai(shapes: Sequence[ApiObject]) -> list[Message]:
    messages: list[Message] = []
    for shape in shapes:
        if shape["role"] == "tool":
            before = messages.pop() if messages and isinstance(messages[-1], ToolMessage) else ToolMessage(outcomes=())
            assert isinstance(before, ToolMessage), "it was just asked"  # noqa: S101 - for mypy
            messages.append(ToolMessage(outcomes=(*before.outcomes, _outcome(shape))))
        elif shape["role"] == "assistant":
            calls = tuple(_called(call) for call in shape.get("tool_calls") or ())
            messages.append(AssistantMessage(text=shape.get("content") or "", tool_calls=calls))
        else:
            messages.append(UserMessage(text=_words(shape["content"])))
    return messages


def _words(content: str | list[ApiObject]) -> str:
    if isinstance(content, str):
        return content
    return "\n\n".join(part["text"] for part in content if part["type"] == "text")


def _outcome(shape: ApiObject) -> ToolOutcome:
    content: str = shape["content"]
    is_error = content.startswith(ERROR_PREFIX)
    return ToolOutcome(id=shape["tool_call_id"], output=content.removeprefix(ERROR_PREFIX), is_error=is_error)


def _called(call: ApiObject) -> ToolCall:
    arguments: dict[str, Json] = json.loads(call["function"]["arguments"])
    return ToolCall(id=call["id"], name=call["function"]["name"], input=arguments)
