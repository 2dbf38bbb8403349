"""The Anthropic Messages API: builds requests and decodes response streams."""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.json import Decoder
from msgspec.structs import asdict, replace

from config import ModelSettings, ProviderSettings
from gateway.agent.models import ModelInfo
from gateway.agent.protocol import CUT_OFF, Chunk, Prompt, TextDelta, TokenUsage
from gateway.agent.providers.endpoint import (
    CUT_SHORT,
    DECLINED,
    THOUGHT_ONLY,
    Body,
    Endpoint,
    ToolCallBuffer,
    decode_event,
)
from gateway.agent.providers.errors import ErrorResponse, json_or_text, read_fault
from gateway.agent.providers.sse import ServerSentEvent
from gateway.agent.providers.wire import ApiObject, to_anthropic
from gateway.conversation import AssistantMessage, Json, Thought, UserMessage
from gateway.errors import ProviderBusy, ProviderFailed

_VERSION = "2026-10-21"
"""Of the API. Its releases: https://docs.anthropic.com/en/api/versioning."""
_MIN_ANSWER_TOKENS = 4_096
"""Tokens that an answer gets on top of the thinking budget."""
_CACHE_BREAKPOINT = {"type": "ephemeral"}
"""Marks the end of a part that the API caches. A request may have four (docs.anthropic.com, prompt caching)."""


def open_anthropic(settings: ProviderSettings, name: str) -> Endpoint:
    return Endpoint(settings, name, AnthropicApi(settings))


class AnthropicApi:
    default_url = "https://api.anthropic.com"
    path = "/v1/messages"
    headers: Mapping[str, str] = {"anthropic-version": _VERSION}

    def __init__(self, settings: ProviderSettings) -> None:
        self._settings = settings

    def body(self, prompt: Prompt, info: ModelInfo) -> Body:
        model = prompt.model or ""
        messages = to_anthropic(prompt.messages, model=info.name, sees_images=info.sees_images)
        # The last two user messages: each step reads from the cache what the step before has written to it.
        for message in [each for each in messages if each["role"] == "user"][-2:]:
            message["content"][-1]["cache_control"] = _CACHE_BREAKPOINT
        body: Body = {"model": model, "max_tokens": info.max_output_tokens, "messages": messages, "stream": True}
        if prompt.system:
            body["system"] = [{"type": "text", "text": prompt.system, "cache_control": _CACHE_BREAKPOINT}]
        if prompt.tools:
            tools: list[ApiObject] = [
                {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
                for tool in prompt.tools
            ]
            tools[-1]["cache_control"] = _CACHE_BREAKPOINT
            body["tools"] = tools
        model_settings = self._settings.models.get(model, ModelSettings())
        if not _can_think(prompt, info.name):
            return body
        if budget := model_settings.thinking_tokens:
            body["thinking"] = {"type": "enabled", "budget_tokens": budget}
            # The API counts thoughts as output.
            body["max_tokens"] = max(info.max_output_tokens, budget + _MIN_ANSWER_TOKENS)
        elif model_settings.thinking:
            body["thinking"] = {"type": "adaptive"}
        return body

    def adapt(self, _body: Body, _rejection: ErrorResponse, /) -> Body | None:
        return None

    def decoder(self, name: str) -> "AnthropicStream":
        return AnthropicStream(name)


def _can_think(prompt: Prompt, name: str) -> bool:
    """Return whether the current turn may use thinking.

    The API rejects thinking if earlier steps of the turn come without their thoughts, which is the case after a restart
    or after another model ran those steps.
    """
    for message in reversed(prompt.messages):
        if isinstance(message, UserMessage):
            return True
        if isinstance(message, AssistantMessage) and message.tool_calls:
            return any(thought.model == name for thought in message.thoughts)
    return True


class _Usage(Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Message(Struct):
    usage: _Usage | None = None


class _Block(Struct):
    type: str
    text: str = ""
    thinking: str = ""
    signature: str = ""
    data: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, Any] | None = None  # Any: the arguments of a tool.


class _Delta(Struct):
    type: str = ""
    text: str = ""
    thinking: str = ""
    signature: str = ""
    partial_json: str = ""
    stop_reason: str | None = None


class _Event(Struct):
    """The fields that we read, of events of every type."""

    type: str
    index: int = 0
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None


_DECODER = Decoder(_Event)


class AnthropicStream:
    """Decodes the events of one stream. Tool calls, thoughts and usage are returned at its end."""

    def __init__(self, name: str) -> None:
        self.is_complete = False
        self._name = name
        self._blocks: dict[int, ApiObject] = {}
        self._calls: dict[int, ToolCallBuffer] = {}
        self._stop_reason = ""
        self._usage: dict[str, int] = {}

    def add(self, event: ServerSentEvent) -> str:
        if event.name == b"error":
            raise ErrorResponse(read_fault(json_or_text(event.data)))
        if not event.data or not event.name:  # All events that count have a name.
            return ""
        read = decode_event(_DECODER, event.data)
        index, block, delta = read.index, read.content_block, read.delta
        if read.type == "message_start" and read.message and read.message.usage:
            self._add_usage(read.message.usage)
        elif read.type == "message_delta":
            self._add_usage(read.usage or _Usage())
            self._stop_reason = (delta and delta.stop_reason) or self._stop_reason
        elif read.type == "message_stop":
            self.is_complete = True
        elif read.type == "content_block_start" and block:
            return self._start_block(index, block)
        elif read.type == "content_block_delta" and delta:
            if delta.type == "text_delta":
                self._blocks[index]["text"] += delta.text
                return delta.text
            if delta.type == "thinking_delta":
                self._blocks[index]["thinking"] += delta.thinking
            elif delta.type == "signature_delta":
                self._blocks[index]["signature"] += delta.signature
            elif delta.type == "input_json_delta":
                self._calls[index].add(delta.partial_json)
        return ""

    def _start_block(self, index: int, block: _Block) -> str:
        """Return the text that the block begins with."""
        if block.type == "text":
            separator = "\n\n" if self._text() else ""
            self._blocks[index] = {"type": "text", "text": block.text}
            return separator + block.text
        if block.type == "thinking":
            self._blocks[index] = {"type": "thinking", "thinking": block.thinking, "signature": block.signature}
        elif block.type == "redacted_thinking":
            self._blocks[index] = {"type": "redacted_thinking", "data": block.data}
        elif block.type == "tool_use":
            self._blocks[index] = {"type": "tool_use", "input": block.input}
            self._calls[index] = ToolCallBuffer(id=block.id, name=block.name)
        return ""

    def end(self, model: str) -> Iterator[Chunk]:
        if not self._stop_reason:
            raise ProviderBusy(CUT_OFF.format(model=model))
        calls = {index: buffer.tool_call() for index, buffer in self._calls.items()}
        for index, call in calls.items():
            given = self._blocks[index]["input"]
            # Some compatible endpoints do not stream arguments, but send them at the start of the block.
            if not call.input and not call.fault and isinstance(given, dict):
                calls[index] = replace(call, input=given)
        has_text = bool(self._text().strip())
        if not calls and self._stop_reason in {"max_tokens", "model_context_window_exceeded"}:
            if not has_text:
                raise ProviderFailed(THOUGHT_ONLY)
            yield TextDelta(text=CUT_SHORT)
        if not calls and self._stop_reason == "refusal" and not has_text:
            raise ProviderFailed(DECLINED)
        if calls and any("thinking" in block["type"] for block in self._blocks.values()):
            # The whole step is kept: the API accepts thoughts only in their place, and unchanged.
            content: list[Json] = []
            for index, block in sorted(self._blocks.items()):
                if index in calls:
                    call = calls[index]
                    content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": call.input})
                elif block.get("text") != "":  # The API rejects empty text blocks.
                    content.append(block)
            yield Thought(model=self._name, shape={"content": content})
        yield from calls.values()
        # The API counts tokens from its cache, and tokens written to it, apart from other input.
        read = self._usage.get("cache_read_input_tokens", 0)
        written = self._usage.get("cache_creation_input_tokens", 0)
        yield TokenUsage(
            input_tokens=self._usage.get("input_tokens", 0) + read + written,
            output_tokens=self._usage.get("output_tokens", 0),
            cache_read_tokens=read,
            cache_write_tokens=written,
            model=self._name,
        )

    def _text(self) -> str:
        return "".join(block["text"] for block in self._blocks.values() if block["type"] == "text")

    def _add_usage(self, usage: _Usage) -> None:
        """Add the counts that `usage` has; each event has only some of them."""
        self._usage |= {name: count for name, count in asdict(usage).items() if count is not None}
