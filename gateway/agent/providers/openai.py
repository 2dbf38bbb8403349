"""The OpenAI Chat Completions API, and every endpoint that speaks it: builds requests and decodes response streams."""

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from msgspec import Struct
from msgspec.json import Decoder

from config import ProviderSettings
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
from gateway.agent.providers.errors import ErrorResponse, read_fault
from gateway.agent.providers.sse import ServerSentEvent
from gateway.agent.providers.wire import to_openai
from gateway.conversation import Json, Thought
from gateway.errors import ProviderBusy, ProviderFailed

_LAST_EVENT = b"[DONE]"
_INVALID = {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY}


def open_openai(settings: ProviderSettings, name: str) -> Endpoint:
    return Endpoint(settings, name, OpenAIApi(settings))


class OpenAIApi:
    default_url = "https://api.openai.com/v1"
    path = "/chat/completions"
    headers: Mapping[str, str] = {}

    def __init__(self, settings: ProviderSettings) -> None:
        self._settings = settings
        self._reports_usage = True
        """Requests ask for usage until the endpoint rejects `stream_options`, which older servers do not know."""

    def body(self, prompt: Prompt, info: ModelInfo) -> Body:
        model = prompt.model or ""
        system = [{"role": "system", "content": prompt.system}] if prompt.system else []
        messages = to_openai(prompt.messages, model=info.name, sees_images=info.sees_images)
        body: Body = {"model": model, "messages": [*system, *messages], "stream": True}
        if prompt.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema},
                }
                for tool in prompt.tools
            ]
        model_settings = self._settings.models.get(model)
        if model_settings and model_settings.max_output_tokens:
            # OpenAI renamed this parameter. Most other endpoints know the old name, and some only that.
            name = "max_tokens" if self._settings.base_url else "max_completion_tokens"
            body[name] = model_settings.max_output_tokens
        if self._reports_usage:
            body["stream_options"] = {"include_usage": True}
        return body

    def adapt(self, body: Body, rejection: ErrorResponse, /) -> Body | None:
        fault = rejection.fault
        if fault.status not in _INVALID or "stream_options" not in body or "stream_options" not in fault.words:
            return None
        self._reports_usage = False
        return {name: value for name, value in body.items() if name != "stream_options"}

    def decoder(self, name: str) -> "OpenAIStream":
        return OpenAIStream(name)


class _Function(Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCallDelta(Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(Struct):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCallDelta] | None = None
    reasoning_content: str | None = None
    reasoning_details: list[Any] | None = None  # Any: the endpoint wants it back as it came.


class _Choice(Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _TokenDetails(Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _TokenDetails | None = None


class _Chunk(Struct):
    """The fields of a chunk that we read. Endpoints leave out other fields, and add their own."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None  # Any: each endpoint has its own format.


_DECODER = Decoder(_Chunk)


class OpenAIStream:
    """Decodes the chunks of one stream. Tool calls, thoughts and usage are returned at its end."""

    def __init__(self, name: str) -> None:
        self.is_complete = False
        self._name = name
        self._calls: list[ToolCallBuffer] = []
        self._by_index: dict[int | None, ToolCallBuffer] = {}
        self._reasoning: list[str] = []
        self._reasoning_details: list[Json] = []
        self._has_text = False
        self._finish_reason = ""
        self._usage = _Usage()

    def add(self, event: ServerSentEvent) -> str:
        if event.data.startswith(_LAST_EVENT):
            self.is_complete = True
        if self.is_complete or not event.data:
            return ""
        chunk = decode_event(_DECODER, event.data)
        if chunk.error:
            raise ErrorResponse(read_fault(chunk.error))
        self._usage = chunk.usage or self._usage
        if not chunk.choices:
            return ""
        choice = chunk.choices[0]
        self._finish_reason = choice.finish_reason or self._finish_reason
        delta = choice.delta or _Delta()
        if delta.reasoning_content:
            self._reasoning.append(delta.reasoning_content)
        self._reasoning_details += delta.reasoning_details or ()
        for part in delta.tool_calls or ():
            call = self._by_index.get(part.index)
            # Some endpoints give no index, or the same one to several calls. A new id then starts a new call.
            if call is None or (part.id and call.id and part.id != call.id):
                call = self._by_index[part.index] = ToolCallBuffer()
                self._calls.append(call)
            call.id = call.id or part.id or ""
            if part.function:
                call.name = call.name or part.function.name or ""
                call.add(part.function.arguments or "")
        text = delta.content or delta.refusal or ""
        self._has_text = self._has_text or bool(text.strip())
        return text

    def end(self, model: str) -> Iterator[Chunk]:
        if not self._finish_reason:
            raise ProviderBusy(CUT_OFF.format(model=model))
        if self._finish_reason == "length" and not self._calls:
            if not self._has_text:
                raise ProviderFailed(THOUGHT_ONLY)
            yield TextDelta(text=CUT_SHORT)
        if self._finish_reason == "content_filter" and not self._has_text:
            raise ProviderFailed(DECLINED)
        thought: dict[str, Json] = {}
        if self._reasoning:
            thought["reasoning_content"] = "".join(self._reasoning)
        if self._reasoning_details:
            thought["reasoning_details"] = self._reasoning_details
        if thought and self._calls:
            yield Thought(model=self._name, shape=thought)
        for call in self._calls:
            yield call.tool_call()
        details = self._usage.prompt_tokens_details or _TokenDetails()
        yield TokenUsage(
            input_tokens=self._usage.prompt_tokens or 0,
            output_tokens=self._usage.completion_tokens or 0,
            cache_read_tokens=details.cached_tokens or 0,
            cache_write_tokens=details.cache_write_tokens or 0,
            model=self._name,
        )
