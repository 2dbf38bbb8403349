"""Reads requests in the formats of the two big APIs back into a conversation, without pictures."""

import json
from collections.abc import Sequence

from gateway.agent.providers.wire import ERROR_PREFIX, ApiObject
from gateway.conversation import AssistantMessage, Message, ToolCall, ToolMessage, ToolOutcome, UserMessage


def from_anthropic(converted: Sequence[ApiObject]) -> list[Message]:
    messages: list[Message] = []
    for each in converted:
        blocks = each["content"]
        texts = [block["text"] for block in blocks if block["type"] == "text"]
        if each["role"] == "assistant":
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


def from_openai(converted: Sequence[ApiObject]) -> list[Message]:
    messages: list[Message] = []
    for each in converted:
        content = each.get("content") or ""
        if each["role"] == "tool":
            output = content.removeprefix(ERROR_PREFIX)
            outcome = ToolOutcome(id=each["tool_call_id"], output=output, is_error=output != content)
            last = messages.pop()
            if isinstance(last, ToolMessage):
                messages.append(ToolMessage(outcomes=(*last.outcomes, outcome)))
            else:
                messages += [last, ToolMessage(outcomes=(outcome,))]
        elif each["role"] == "assistant":
            calls = tuple(
                ToolCall(id=call["id"], name=call["function"]["name"], input=json.loads(call["function"]["arguments"]))
                for call in each.get("tool_calls") or ()
            )
            messages.append(AssistantMessage(text=content, tool_calls=calls))
        else:
            texts = [content] if isinstance(content, str) else [part["text"] for part in content if "text" in part]
            messages.append(UserMessage(text="\n\n".join(texts)))
    return messages
