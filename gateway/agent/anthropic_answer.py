"""An answer of the Messages API, put together from the events of its stream. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct, convert
from msgspec.structs import asdict, replace

from gateway.agent.calls import Pieces
from gateway.agent.endings import CUT_SHORT, DECLINED, THOUGHT_ONLY
from gateway.agent.failures import CUT_OFF
from gateway.agent.provider import Chunk, TextDelta, Usage
from gateway.agent.shapes import Shape
from gateway.conversation import Json, Thought, ToolCall
from gateway.errors import ProviderBusy, ProviderFailed

__all__ = ["AnthropicAnswer"]


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


class AnthropicAnswer:
    """Puts the events of a stream together. Calls, thoughts and usage are handed over at its end, if it has one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._blocks: dict[int, Shape] = {}
        self._calls: dict[int, Pieces] = {}
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
                self._calls[index] = Pieces(id=block.id, name=block.name)

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

    def _usage(self) -> Usage:
        """Count as input all that was read: the API counts apart what came from its cache or was put there."""
        read = self._counts.get("cache_read_input_tokens", 0)
        written = self._counts.get("cache_creation_input_tokens", 0)
        return Usage(
            input_tokens=self._counts.get("input_tokens", 0) + read + written,
            output_tokens=self._counts.get("output_tokens", 0),
            cache_read_tokens=read,
            cache_write_tokens=written,
            model=self._name,
        )
