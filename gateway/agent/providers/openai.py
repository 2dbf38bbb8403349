"""An answer of the Chat Completions API, put together from the chunks of its stream. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec import Struct, convert
from msgspec.json import encode

from config import ProviderSettings
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
from gateway.agent.providers.wire import to_openai, without_unseen_images
from gateway.conversation import Json, Thought
from gateway.errors import ProviderBusy, ProviderFailed


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


class OpenAIStream:
    """Puts the chunks of a stream together. Calls, thoughts and usage are handed over at its end, if it has one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: list[ToolCallBuffer] = []
        self._by_index: dict[int | None, ToolCallBuffer] = {}
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
            call = self._by_index[piece.index] = ToolCallBuffer()
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

    def _counted(self) -> TokenUsage:
        details = self._usage.prompt_tokens_details or _Details()
        return TokenUsage(
            input_tokens=self._usage.prompt_tokens or 0,
            output_tokens=self._usage.completion_tokens or 0,
            cache_read_tokens=details.cached_tokens or 0,
            cache_write_tokens=details.cache_write_tokens or 0,
            model=self._name,
        )


if TYPE_CHECKING:
    from openai import AsyncOpenAI


_ENDPOINT = "https://api.openai.com/v1"


def open_openai(settings: ProviderSettings, name: str) -> Endpoint[AsyncOpenAI]:
    return Endpoint(settings, name, OpenAIApi(settings, name))


class OpenAIApi:
    """The dialect. Usage is asked for until the endpoint turns out not to know of it."""

    def __init__(self, settings: ProviderSettings, name: str) -> None:
        self._settings = settings
        self._name = name
        self._reports_usage = True

    def connect(self) -> AsyncOpenAI:
        from openai import AsyncOpenAI  # noqa: PLC0415 - that is what this function is for.

        settings = self._settings
        client = AsyncOpenAI(
            api_key=settings.api_key.reveal() if settings.api_key else NO_KEY,
            base_url=settings.base_url or _ENDPOINT,
            max_retries=0,
            http_client=http_client(settings),
        )
        client.organization = client.project = None  # They would come from the environment.
        return client

    def errors(self) -> tuple[type[Exception], ...]:
        import httpx2  # noqa: PLC0415 - imported in a thread by now; see `connect`.
        import openai  # noqa: PLC0415 - as above

        return (openai.OpenAIError, httpx2.HTTPError)

    def body(self, prompt: Prompt) -> Body:
        model = prompt.model or ""
        info = describe(self._name, self._settings, model)
        system = [{"role": "system", "content": prompt.system}] if prompt.system else []
        messages = to_openai(without_unseen_images(prompt.messages, sees_images=info.sees_images), model=info.name)
        body: Body = {"model": model, "messages": [*system, *messages], "stream": True}
        if prompt.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema},
                }
                for tool in prompt.tools
            ]
        told = self._settings.models.get(model)
        if told and told.max_output_tokens:
            # OpenAI has renamed it; most others know the old name, and some know only that.
            name = "max_tokens" if self._settings.base_url else "max_completion_tokens"
            body[name] = told.max_output_tokens
        return body

    async def ask(self, client: AsyncOpenAI, body: Body) -> EventStream:
        import openai  # noqa: PLC0415 - as above

        if self._reports_usage:
            try:
                return await _begun(client, {**body, "stream_options": {"include_usage": True}})
            except (openai.BadRequestError, openai.UnprocessableEntityError) as refused:
                if "stream_options" not in str(refused):
                    raise
                self._reports_usage = False
        return await _begun(client, body)

    def answer(self, name: str) -> OpenAIStream:
        return OpenAIStream(name)


async def _begun(client: AsyncOpenAI, body: Body) -> EventStream:
    from openai import AsyncStream  # noqa: PLC0415 - as above

    return await client.post(
        "/chat/completions", cast_to=object, content=encode(body), stream=True, stream_cls=AsyncStream[object]
    )
