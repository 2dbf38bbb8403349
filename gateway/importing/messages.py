"""Parses the messages of a conversation, as most gateways and model providers write them.

A message has a `role` (or a `type`), and its content is a text or a list of parts. Tool calls are in it as OpenAI,
Anthropic or miniclaw write them. Parts that are not understood are counted and left out.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from gateway.importing.source_files import Item, load_json, parse_time
from gateway.importing.values import Conversation, ImportedText, ImportedToolResult, ImportedToolUse
from gateway.text import clean

MAX_TEXT = 1_000_000
"""Characters of one message. The rest of a longer one is left out."""
_SILENT_PARTS = frozenset({"thinking", "reasoning", "redacted_thinking"})
"""What a model has thought is not part of the conversation."""


def add_messages(
    conversation: Conversation, messages: Iterable[object], *, at: datetime | None = None, is_local: bool = False
) -> None:
    """Add the steps of all messages. Those without a time are dated like the one before, and the first ones with `at`.

    `is_local`: their times have no zone, and are those of this machine.
    """
    at = at or conversation.updated
    # The calls of the last step that have no result yet. A result without an id belongs to the first of them.
    open_calls: list[str] = []
    for message in messages:
        if not isinstance(message, dict):
            conversation.left_out["damaged message"] += 1
            continue
        at = parse_time(message.get("timestamp") or message.get("ts"), is_local=is_local) or at
        kind, content = message.get("role") or message.get("type"), message.get("content")
        match kind:
            case "tool_use":
                conversation.steps.append(_tool_use(conversation, message, at))
            case "tool_result" | "tool" | "toolResult":
                result = _tool_result(conversation, message, at)
                if not result.id and open_calls:
                    result = replace(result, id=open_calls[0])
                if result.id in open_calls:
                    open_calls.remove(result.id)
                conversation.steps.append(result)
            case "user" | "assistant":
                _add_content(conversation, content, at, is_user=kind == "user", message=message)
                calls = message.get("tool_calls")
                if kind == "assistant" and isinstance(calls, list) and calls:
                    open_calls = _add_tool_calls(conversation, calls, at)
            case "system" | "developer":
                conversation.left_out["system message"] += 1
            case _:
                conversation.left_out["unknown message"] += 1


def _add_content(conversation: Conversation, content: object, at: datetime, *, is_user: bool, message: Item) -> None:
    """Add the content of a message: a text, or parts of which some are tool calls and results."""
    steps = conversation.steps
    if isinstance(content, str) and content.strip():
        steps.append(ImportedText(is_user=is_user, content=_text(conversation, content), at=at))
    elif isinstance(content, list):
        for part in content:
            match part:
                case str() if part.strip():
                    steps.append(ImportedText(is_user=is_user, content=_text(conversation, part), at=at))
                case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
                    if text.strip():
                        steps.append(ImportedText(is_user=is_user, content=_text(conversation, text), at=at))
                case {"type": "tool_use" | "toolCall"}:
                    steps.append(_tool_use(conversation, part, at))
                case {"type": "tool_result"}:
                    steps.append(_tool_result(conversation, part, at))
                case {"type": str(kind)} if kind in _SILENT_PARTS:
                    pass
                case {"type": "image" | "image_url" | "input_image"}:
                    conversation.left_out["picture"] += 1
                case _:
                    conversation.left_out["unknown part"] += 1
    elif not message.get("tool_calls"):
        conversation.left_out["empty message"] += 1


def _add_tool_calls(conversation: Conversation, calls: Iterable[object], at: datetime) -> list[str]:
    """Add the calls of one step, and return their ids. Results are matched by the id, so each call gets its own."""
    ids: list[str] = []
    for call in calls:
        if not isinstance(call, dict):
            conversation.left_out["damaged tool call"] += 1
            continue
        used = _tool_use(conversation, call, at)
        if not used.id or used.id in ids:
            used = replace(used, id=f"import-{len(conversation.steps)}")
        ids.append(used.id)
        conversation.steps.append(used)
    return ids


def _tool_use(conversation: Conversation, item: Item, at: datetime) -> ImportedToolUse:
    """Parse a call as miniclaw, Anthropic or OpenAI write it. OpenAI has the arguments as a text of JSON."""
    function = item.get("function")
    item = {**item, **function} if isinstance(function, dict) else item
    given = item.get("input", item.get("arguments"))
    if isinstance(given, str):
        text, given = given, load_json(given)
        if text.strip() and not isinstance(given, dict):
            conversation.left_out["damaged argument"] += 1
    return ImportedToolUse(
        id=clean(str(item.get("tool_use_id") or item.get("id") or "")),
        name=clean(str(item.get("name") or "unknown")),
        input=given if isinstance(given, dict) else {},
        at=at,
    )


def _tool_result(conversation: Conversation, item: Item, at: datetime) -> ImportedToolResult:
    output = item.get("output", item.get("content", ""))
    if isinstance(output, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in output
    ):
        text = "\n".join(part["text"] for part in output)
    else:
        text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    call = item.get("tool_use_id") or item.get("tool_call_id") or item.get("toolCallId") or ""
    is_error = item.get("is_error") is True or item.get("isError") is True
    return ImportedToolResult(id=clean(str(call)), output=_text(conversation, text), at=at, is_error=is_error)


def _text(conversation: Conversation, text: str) -> str:
    if len(text) > MAX_TEXT:
        conversation.left_out["end of a very long text"] += 1
        text = text[:MAX_TEXT]
    return clean(text)
