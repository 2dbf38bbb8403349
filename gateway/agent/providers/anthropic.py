"""An answer of the Messages API, put together from the events of its stream. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, convert
from msgspec.json import encode
from msgspec.structs import asdict, replace

from config import ModelSettings, ProviderSettings
from gateway.agent.models import describe
from gateway.agent.protocol import Chunk, Prompt, TextDelta, TokenUsage
from gateway.agent.providers.endpoint import (
    CUT_SHORT,
    DECLINED,
    NO_KEY,
    THOUGHT_ONLY,
    Body,
    Endpoint,
    EventStream,
    ToolCallBuffer,
)
from gateway.agent.providers.errors import CUT_OFF
from gateway.agent.providers.sdk_client import http_client
from gateway.agent.providers.wire import ApiObject, to_anthropic, without_unseen_images
from gateway.conversation import AssistantMessage, Json, Message, Thought, ToolCall, UserMessage
from gateway.errors import ProviderBusy, ProviderFailed


class _Counts(Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Message(Struct):
    usage: _Counts | None = None


class _Block(Struct):
    type: str
    text: str = ""
    thinking: str = ""
    signature: str = ""
    data: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, Any] | None = None  # What the tool takes.


class _Delta(Struct):
    type: str = ""
    text: str = ""
    thinking: str = ""
    signature: str = ""
    partial_json: str = ""
    stop_reason: str | None = None


class _Event(Struct):
    """Of an event of any kind, what we look at."""

    type: str
    index: int = 0
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Counts | None = None


class AnthropicStream:
    """Puts the events of a stream together. Calls, thoughts and usage are handed over at its end, if it has one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._blocks: dict[int, ApiObject] = {}
        self._calls: dict[int, ToolCallBuffer] = {}
        self._reason = ""
        self._counts: dict[str, int] = {}

    def take(self, raw: object) -> Iterator[TextDelta]:
        match convert(raw, _Event):
            case _Event(type="message_start", message=_Message(usage=_Counts() as counts)):
                self._count(counts)
            case _Event(type="message_delta", delta=delta, usage=counts):
                self._count(counts or _Counts())
                self._reason = (delta and delta.stop_reason) or self._reason
            case _Event(type="content_block_start", index=index, content_block=_Block() as block):
                yield from self._start(index, block)
            case _Event(type="content_block_delta", index=index, delta=_Delta() as delta):
                yield from self._add(index, delta)

    def end(self, model: str) -> Iterator[Chunk]:
        if not self._reason:
            raise ProviderBusy(CUT_OFF.format(model=model))
        calls = {index: self._whole(index) for index in self._calls}
        if not calls:
            yield from self._note()
        yield from self._thoughts(calls)
        yield from calls.values()
        yield self._usage()

    def _start(self, index: int, block: _Block) -> Iterator[TextDelta]:
        match block.type:
            case "text":
                if self._text():
                    yield TextDelta(text="\n\n")
                self._blocks[index] = {"type": "text", "text": ""}
                yield from self._say(index, block.text)
            case "thinking":
                self._blocks[index] = {"type": "thinking", "thinking": block.thinking, "signature": block.signature}
            case "redacted_thinking":
                self._blocks[index] = {"type": "redacted_thinking", "data": block.data}
            case "tool_use":
                self._blocks[index] = {"type": "tool_use", "input": block.input}
                self._calls[index] = ToolCallBuffer(id=block.id, name=block.name)

    def _add(self, index: int, delta: _Delta) -> Iterator[TextDelta]:
        match delta.type:
            case "text_delta":
                yield from self._say(index, delta.text)
            case "thinking_delta":
                self._blocks[index]["thinking"] += delta.thinking
            case "signature_delta":
                self._blocks[index]["signature"] += delta.signature
            case "input_json_delta":
                self._calls[index].add(delta.partial_json)

    def _say(self, index: int, text: str) -> Iterator[TextDelta]:
        self._blocks[index]["text"] += text
        if text:
            yield TextDelta(text=text)

    def _text(self) -> str:
        return "".join(block["text"] for block in self._blocks.values() if block["type"] == "text")

    def _note(self) -> Iterator[TextDelta]:
        """Say how the answer has ended, where that is not of itself."""
        has_text = bool(self._text().strip())
        if self._reason in {"max_tokens", "model_context_window_exceeded"}:
            if not has_text:
                raise ProviderFailed(THOUGHT_ONLY)
            yield TextDelta(text=CUT_SHORT)
        elif self._reason == "refusal" and not has_text:
            raise ProviderFailed(DECLINED)

    def _whole(self, index: int) -> ToolCall:
        """Return the call; an endpoint that does not stream the arguments has given them at the start of the block."""
        call = self._calls[index].whole()
        given = self._blocks[index]["input"]
        if call.input or call.fault or not isinstance(given, dict):
            return call
        return replace(call, input=given)

    def _thoughts(self, calls: dict[int, ToolCall]) -> Iterator[Thought]:
        """Keep the whole step as it came: the API takes thoughts back only in their place, and unchanged."""
        if not calls or not any("thinking" in block["type"] for block in self._blocks.values()):
            return
        content: list[Json] = []
        for index, block in sorted(self._blocks.items()):
            if call := calls.get(index):
                content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": call.input})
            elif block.get("text", "given"):
                content.append(block)
        yield Thought(model=self._name, shape={"content": content})

    def _count(self, told: _Counts) -> None:
        self._counts |= {name: count for name, count in asdict(told).items() if count is not None}

    def _usage(self) -> TokenUsage:
        """Count as input all that was read: the API counts apart what came from its cache or was put there."""
        read = self._counts.get("cache_read_input_tokens", 0)
        written = self._counts.get("cache_creation_input_tokens", 0)
        return TokenUsage(
            input_tokens=self._counts.get("input_tokens", 0) + read + written,
            output_tokens=self._counts.get("output_tokens", 0),
            cache_read_tokens=read,
            cache_write_tokens=written,
            model=self._name,
        )


if TYPE_CHECKING:
    from anthropic import AsyncAnthropic


_ENDPOINT = "https://api.anthropic.com"
_ROOM_TO_ANSWER = 4_096
"""Tokens that an answer gets beyond what the model may think."""
_CACHED = {"type": "ephemeral"}
"""Marks the end of what the API shall keep: of the tools, of the system prompt, and of the last two user messages."""


def open_anthropic(settings: ProviderSettings, name: str) -> Endpoint[AsyncAnthropic]:
    return Endpoint(settings, name, AnthropicApi(settings, name))


class AnthropicApi:
    """The dialect of the Messages API."""

    def __init__(self, settings: ProviderSettings, name: str) -> None:
        self._settings = settings
        self._name = name

    def connect(self) -> AsyncAnthropic:
        from anthropic import AsyncAnthropic  # noqa: PLC0415 - that is what this function is for.

        settings = self._settings
        return AsyncAnthropic(
            api_key=settings.api_key.reveal() if settings.api_key else NO_KEY,
            base_url=settings.base_url or _ENDPOINT,
            max_retries=0,
            open_telemetry=False,
            http_client=http_client(settings),
        )

    def errors(self) -> tuple[type[Exception], ...]:
        import anthropic  # noqa: PLC0415 - imported in a thread by now; see `connect`.
        import httpx2  # noqa: PLC0415 - as above

        return (anthropic.AnthropicError, httpx2.HTTPError)

    def body(self, prompt: Prompt) -> Body:
        model = prompt.model or ""
        info = describe(self._name, self._settings, model)
        messages = to_anthropic(without_unseen_images(prompt.messages, sees_images=info.sees_images), model=info.name)
        body: Body = {
            "model": model,
            "max_tokens": info.max_output_tokens,
            "messages": _marked(messages),
            "stream": True,
        }
        if prompt.system:
            body["system"] = [{"type": "text", "text": prompt.system, "cache_control": _CACHED}]
        if prompt.tools:
            tools: list[ApiObject] = [
                {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
                for tool in prompt.tools
            ]
            tools[-1]["cache_control"] = _CACHED
            body["tools"] = tools
        if _may_think(prompt.messages, info.name):
            body.update(_thinking(self._settings.models.get(model, ModelSettings()), info.max_output_tokens))
        return body

    async def ask(self, client: AsyncAnthropic, body: Body) -> EventStream:
        from anthropic import AsyncStream  # noqa: PLC0415 - as above

        return await client.post(
            "/v1/messages", cast_to=object, content=encode(body), stream=True, stream_cls=AsyncStream[object]
        )

    def answer(self, name: str) -> AnthropicStream:
        return AnthropicStream(name)


def _marked(messages: list[ApiObject]) -> list[ApiObject]:
    """Mark the last two user messages, so that each step reads from the cache what the one before has put there."""
    for message in [each for each in messages if each["role"] == "user"][-2:]:
        message["content"][-1]["cache_control"] = _CACHED
    return messages


def _may_think(messages: Sequence[Message], name: str) -> bool:
    """Tell whether the steps of this turn have their thoughts: after a restart, or by another model, they have not."""
    for message in reversed(messages):
        if isinstance(message, UserMessage):
            return True
        if isinstance(message, AssistantMessage) and message.tool_calls:
            return any(thought.model == name for thought in message.thoughts)
    return True


def _thinking(settings: ModelSettings, max_output: int) -> Body:
    if settings.thinking_tokens:
        budget = settings.thinking_tokens
        return {
            "thinking": {"type": "enabled", "budget_tokens": budget},
            "max_tokens": max(max_output, budget + _ROOM_TO_ANSWER),
        }
    return {"thinking": {"type": "adaptive"}} if settings.thinking else {}
