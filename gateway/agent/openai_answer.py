"""An answer of the Chat Completions API, put together from the chunks of its stream. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct, convert

from gateway.agent.calls import Pieces
from gateway.agent.endings import CUT_SHORT, DECLINED, THOUGHT_ONLY
from gateway.agent.failures import CUT_OFF
from gateway.agent.provider import Chunk, TextDelta, Usage
from gateway.conversation import Json, Thought
from gateway.errors import ProviderBusy, ProviderFailed

__all__ = ["OpenAIAnswer"]


class _Function(Struct):
    name: str | None = None
    arguments: str | None = None


class _Piece(Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(Struct):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[_Piece] | None = None
    reasoning_content: str | None = None
    reasoning_details: list[Any] | None = None  # Whatever the endpoint wants back.


class _Choice(Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Details(Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Chunk(Struct):
    """Of a chunk, what we look at. Endpoints leave out the rest at will, and add to it."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None


class OpenAIAnswer:
    """Puts the chunks of a stream together. Calls, thoughts and usage are handed over at its end, if it has one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: list[Pieces] = []
        self._by_index: dict[int | None, Pieces] = {}
        self._thinking: list[str] = []
        self._details: list[Json] = []
        self._has_text = False
        self._reason = ""
        self._usage = _Usage()

    def take(self, raw: object) -> Iterator[TextDelta]:
        chunk = convert(raw, _Chunk)
        self._usage = chunk.usage or self._usage
        for choice in (chunk.choices or ())[:1]:
            self._reason = choice.finish_reason or self._reason
            if choice.delta:
                yield from self._add(choice.delta)

    def end(self, model: str) -> Iterator[Chunk]:
        if not self._reason:
            raise ProviderBusy(CUT_OFF.format(model=model))
        if self._reason == "length" and not self._calls:
            if not self._has_text:
                raise ProviderFailed(THOUGHT_ONLY)
            yield TextDelta(text=CUT_SHORT)
        if self._reason == "content_filter" and not self._has_text:
            raise ProviderFailed(DECLINED)
        yield from self._thoughts()
        for call in self._calls:
            yield call.whole()
        yield self._counted()

    def _add(self, delta: _Delta) -> Iterator[TextDelta]:
        if delta.reasoning_content:
            self._thinking.append(delta.reasoning_content)
        self._details += delta.reasoning_details or ()
        for piece in delta.tool_calls or ():
            self._add_to_call(piece)
        if text := delta.content or delta.refusal:
            self._has_text = self._has_text or bool(text.strip())
            yield TextDelta(text=text)

    def _add_to_call(self, piece: _Piece) -> None:
        """Add to the call that the piece belongs to. Some endpoints give no index, or the same to several calls."""
        call = self._by_index.get(piece.index)
        if call is None or (piece.id and call.id and piece.id != call.id):
            call = self._by_index[piece.index] = Pieces()
            self._calls.append(call)
        call.id = call.id or piece.id or ""
        if piece.function:
            call.name = call.name or piece.function.name or ""
            call.add(piece.function.arguments or "")

    def _thoughts(self) -> Iterator[Thought]:
        shape: dict[str, Json] = {}
        if self._thinking:
            shape["reasoning_content"] = "".join(self._thinking)
        if self._details:
            shape["reasoning_details"] = self._details
        if shape and self._calls:
            yield Thought(model=self._name, shape=shape)

    def _counted(self) -> Usage:
        details = self._usage.prompt_tokens_details or _Details()
        return Usage(
            input_tokens=self._usage.prompt_tokens or 0,
            output_tokens=self._usage.completion_tokens or 0,
            cache_read_tokens=details.cached_tokens or 0,
            cache_write_tokens=details.cache_write_tokens or 0,
            model=self._name,
        )
