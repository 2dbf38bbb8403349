"""Converts a conversation to the message formats of the two big APIs.

Anthropic: roles alternate. Tool calls are blocks of the assistant; their results are blocks of the next user message.
OpenAI: tool calls are a field of the assistant message. Each result is a message with the role `tool`.
"""

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from hashlib import blake2s
from typing import Any

from msgspec.structs import replace

from gateway.agent.senders import with_sender
from gateway.conversation import AssistantMessage, Message, Picture, ToolMessage, UserMessage

ApiObject = dict[str, Any]  # Any: the APIs' own formats, which differ from message to message.

EMPTY_TEXT = "(nothing)"
"""Stands for empty text: neither API accepts a message without text."""
ERROR_PREFIX = "Error: "
"""Marks a failed tool for OpenAI, whose tool messages have no field for that."""

_ACCEPTED_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")


def to_anthropic(messages: Iterable[Message], *, model: str = "", sees_images: bool = True) -> list[ApiObject]:
    """Convert for `model`. It gets its own thoughts back; other models' thoughts are left out."""
    converted: list[ApiObject] = []
    for message in _with_unique_ids(messages):
        role = "assistant" if isinstance(message, AssistantMessage) else "user"
        blocks = _anthropic_blocks(message, model, sees_images=sees_images)
        # Two messages of one role become one, since the API expects alternating roles.
        if converted and converted[-1]["role"] == role:
            converted[-1]["content"] += blocks
        else:
            converted.append({"role": role, "content": blocks})
    return converted


def _anthropic_blocks(message: Message, model: str, *, sees_images: bool) -> list[ApiObject]:
    match message:
        case UserMessage():
            # Anthropic recommends images before the text about them.
            images = [
                {
                    "type": "image",
                    "source": {
                        "type": "base64",
                        "media_type": picture.media_type,
                        "data": b64encode(picture.data).decode(),
                    },
                }
                for picture in _visible(message, sees_images=sees_images)
            ]
            return [*images, {"type": "text", "text": _non_empty(with_sender(message))}]
        case AssistantMessage():
            for thought in message.thoughts:
                content: Any = thought.shape.get("content")  # Any: the API's own format.
                if thought.model == model and isinstance(content, list):
                    # The API accepts thoughts only in the unchanged step. If its calls got other ids, they don't fit.
                    ids = [block["id"] for block in content if block["type"] == "tool_use"]
                    if ids == [call.id for call in message.tool_calls]:
                        return [*content]
            calls = [
                {"type": "tool_use", "id": call.id, "name": _accepted_name(call.name), "input": call.input}
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


def to_openai(messages: Iterable[Message], *, model: str = "", sees_images: bool = True) -> list[ApiObject]:
    """Convert for `model`. It gets its own thoughts back; other models' thoughts are left out."""
    converted: list[ApiObject] = []
    for message in _with_unique_ids(messages):
        match message:
            case UserMessage():
                text = _non_empty(with_sender(message))
                images = [
                    {
                        "type": "image_url",
                        "image_url": {
                            "url": f"data:{picture.media_type};base64,{b64encode(picture.data).decode()}",
                        },
                    }
                    for picture in _visible(message, sees_images=sees_images)
                ]
                # Plain text if there are no images: not every compatible server accepts a list.
                content = [*images, {"type": "text", "text": text}] if images else text
                converted.append({"role": "user", "content": content})
            case AssistantMessage(tool_calls=()):
                converted.append({"role": "assistant", "content": _non_empty(message.text)})
            case AssistantMessage():
                calls = [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {
                            "name": _accepted_name(call.name),
                            "arguments": json.dumps(call.input, ensure_ascii=False),
                        },
                    }
                    for call in message.tool_calls
                ]
                step: ApiObject = {"role": "assistant", "content": message.text or None, "tool_calls": calls}
                for thought in message.thoughts:
                    if thought.model == model:
                        step |= thought.shape
                converted.append(step)
            case ToolMessage():
                converted += [
                    {
                        "role": "tool",
                        "tool_call_id": outcome.id,
                        "content": f"{ERROR_PREFIX if outcome.is_error else ''}{outcome.output or EMPTY_TEXT}",
                    }
                    for outcome in message.outcomes
                ]
    return converted


def _with_unique_ids(messages: Iterable[Message]) -> Iterator[Message]:
    """Give each tool call a unique id that both APIs accept: some endpoints reuse the same ids in each step."""
    used: set[str] = set()
    ids: list[str] = []
    for message in messages:
        if isinstance(message, AssistantMessage) and message.tool_calls:
            ids = []
            for call in message.tool_calls:
                unique, number = call.id, 1
                # A new id depends only on the old one, so a provider's prompt cache stays valid.
                while unique in used or not _ACCEPTED_ID.fullmatch(unique):
                    unique = f"call_{blake2s(f'{call.id}#{number}'.encode(), digest_size=16).hexdigest()}"
                    number += 1
                used.add(unique)
                ids.append(unique)
            calls = zip(message.tool_calls, ids, strict=True)
            yield replace(message, tool_calls=tuple(replace(call, id=unique) for call, unique in calls))
        elif isinstance(message, ToolMessage):
            outcomes = zip(message.outcomes, ids, strict=True)
            yield ToolMessage(outcomes=tuple(replace(outcome, id=unique) for outcome, unique in outcomes))
        else:
            yield message


def _visible(message: UserMessage, *, sees_images: bool) -> list[Picture]:
    """Return the pictures for a model that sees images. For others, the text names them."""
    return [picture for picture in message.pictures if picture.data] if sees_images and message.pictures else []


def _accepted_name(tool: str) -> str:
    """Return a name that both APIs accept: a model may have called a tool that cannot exist."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", tool)[:64] or "_"


def _non_empty(text: str) -> str:
    return text if text.strip() else EMPTY_TEXT
