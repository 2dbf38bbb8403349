"""Checks requests by the documented rules of the real APIs. A complaint is a reason to refuse the request."""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

Shape = dict[str, Any]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_OPENAI_ID = re.compile(r".{1,40}")
_ANTHROPIC_ID = re.compile(r"[A-Za-z0-9_-]+")
_MAX_BREAKPOINTS = 4


def openai_complaints(body: Shape) -> Iterator[str]:
    messages = body["messages"]
    roles = [message["role"] for message in messages]
    if "system" in roles[1:] or roles[-1] not in {"user", "tool"}:
        yield f"roles are {roles}"
    due: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in due:
                yield "a tool message answers no call of the message before"
                continue
            due.remove(message["tool_call_id"])
            continue
        if due:
            yield f"no tool message for {due}"
        calls = message.get("tool_calls") or ()
        due = [call["id"] for call in calls]
        if not message["content"] and not calls:
            yield "a message without content"
        yield from _call_complaints(calls)
    if due:
        yield f"no tool message for {due}"


def _call_complaints(calls: Any) -> Iterator[str]:  # noqa: ANN401 - a list of objects of the API
    ids = [call["id"] for call in calls]
    if len(set(ids)) < len(ids) or not all(_OPENAI_ID.fullmatch(each) for each in ids):
        yield f"ids are {ids}"
    for call in calls:
        if not _NAME.fullmatch(call["function"]["name"]):
            yield f"a function called {call['function']['name']!r}"
        if not isinstance(json.loads(call["function"]["arguments"]), dict):
            yield "arguments that are no object"


def anthropic_complaints(body: Shape) -> Iterator[str]:
    messages = body["messages"]
    roles = [message["role"] for message in messages]
    if roles != ["user", "assistant"] * (len(roles) // 2) + ["user"]:
        yield f"roles are {roles}"
    for before, after in pairwise([{"content": []}, *messages]):
        yield from _pair_complaints(before["content"], after["content"])
    blocks = [block for message in messages for block in message["content"]]
    uses = [block for block in blocks if block["type"] == "tool_use"]
    ids = [use["id"] for use in uses]
    if len(set(ids)) < len(ids) or not all(_ANTHROPIC_ID.fullmatch(each) for each in ids):
        yield f"ids are {ids}"
    if not all(_NAME.fullmatch(use["name"]) and isinstance(use["input"], dict) for use in uses):
        yield f"tools are {[use['name'] for use in uses]}"
    if not all(block["text"].strip() for block in blocks if block["type"] == "text"):
        yield "an empty text block"
    if str(body).count("'cache_control'") > _MAX_BREAKPOINTS:
        yield "more than four cache breakpoints"
    yield from _thinking_complaints(body)


def _pair_complaints(before: list[Shape], after: list[Shape]) -> Iterator[str]:
    called = [block["id"] for block in before if block["type"] == "tool_use"]
    answered = [block["tool_use_id"] for block in after if block["type"] == "tool_result"]
    if sorted(called) != sorted(answered):
        yield f"calls {called}, results {answered}"
    kinds = [block["type"] for block in after]
    if "tool_result" in kinds[len(answered) :]:
        yield "tool results must come first in a message"


def _thinking_complaints(body: Shape) -> Iterator[str]:
    thinking = body.get("thinking", {"type": "disabled"})
    if thinking["type"] == "disabled":
        return
    if thinking.get("budget_tokens", 0) >= body["max_tokens"]:
        yield "the budget for thinking is not below max_tokens"
    last = body["messages"][-1]["content"]
    before = body["messages"][-2]["content"] if len(body["messages"]) > 1 else []
    if last[0]["type"] == "tool_result" and "thinking" not in before[0]["type"]:
        yield "a final assistant message must start with a thinking block"
