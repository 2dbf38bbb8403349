"""A model endpoint as a provider: sends one request and streams the response.

`openai.py` and `anthropic.py` implement `ChatApi` for their API.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any, NoReturn, Protocol, TypeVar

import msgspec
from aiohttp import ClientError, ClientResponse, ClientSession
from yarl import URL

from config import ProviderSettings
from gateway.agent.models import ModelInfo, describe
from gateway.agent.protocol import MAX_TOOL_CALL_BYTES, TOOL_CALL_TOO_LONG, Chunk, Prompt, TextDelta, new_call_id
from gateway.agent.providers.errors import ErrorResponse, ProviderFault, json_or_text, read_fault, translate_errors
from gateway.agent.providers.http_session import SharedSession
from gateway.agent.providers.sse import EventReader, ServerSentEvent
from gateway.conversation import Json, ToolCall
from gateway.errors import ProviderFailed

CUT_SHORT = "\n\n*(The answer ends here because the model reached its limit for one answer.)*"
DECLINED = "The model declined to answer that."
THOUGHT_ONLY = (
    "The model reached its limit for one answer before it wrote anything. "
    "The bot's operator can raise max_output_tokens."
)

MAX_ERROR_BYTES = 65_536
"""The rest of a longer error is not read."""

_HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "gzip, deflate",
    "Content-Type": "application/json",
    "User-Agent": "Gatehouse",
}
_NO_STREAM = {"application/json", "text/html"}
_NO_KEY = "none"
"""Stands in for the API key at servers that need none: some insist on the header."""
_MODELS_CACHED = 64
_USABLE_ID = re.compile(r"[A-Za-z0-9_-]{16,40}")
"""Shorter ids are counters that restart with each step. The APIs do not accept every other id of each other."""
_INVALID_JSON = "The arguments were not one complete JSON object. Send the call again with valid arguments."

Body = dict[str, Any]
"""A request in the API's own format."""
T = TypeVar("T")


class StreamDecoder(Protocol):
    """Turns the events of one stream into chunks."""

    is_complete: bool
    """Whether the last event of the stream has arrived."""

    def add(self, event: ServerSentEvent) -> str:
        """Decode one event. Returns its text, which is passed on at once."""

    def end(self, model: str) -> Iterable[Chunk]:
        """Return tool calls, thoughts and usage. Raises `ProviderBusy` if the stream ended too early."""


class ChatApi(Protocol):
    """The parts that differ between APIs."""

    default_url: str
    path: str
    """Is appended to the path of the base URL."""
    headers: Mapping[str, str]

    def body(self, prompt: Prompt, info: ModelInfo) -> Body: ...

    def adapt(self, body: Body, rejection: ErrorResponse, /) -> Body | None:
        """Return `body` without the optional part that the endpoint has rejected, or None if that is not the reason."""

    def decoder(self, name: str) -> StreamDecoder: ...


def url_of(base: URL, path: str) -> URL:
    """Return the URL of an operation. A query of the base URL stays."""
    return base.with_path(f"{base.raw_path.rstrip('/')}{path}", encoded=True, keep_query=True)


class Endpoint:
    """Runs each step with one request. `ResilientProvider` retries."""

    def __init__(self, settings: ProviderSettings, name: str, api: ChatApi) -> None:
        self._settings = settings
        self._name = name
        self._api = api
        self._url = url_of(URL(settings.base_url or api.default_url), api.path)
        key = settings.api_key.reveal() if settings.api_key else _NO_KEY
        headers = {**_HEADERS, "Authorization": f"Bearer {key}", **api.headers}
        self._session = SharedSession(settings, headers, is_encrypted=self._url.scheme == "https")
        self._describe = lru_cache(maxsize=_MODELS_CACHED)(partial(describe, name, settings))

    async def warm_up(self) -> None:
        await self._session.warm_up()

    async def aclose(self) -> None:
        await self._session.aclose()

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        model = prompt.model or ""
        decoder = self._api.decoder(f"{self._name}/{model}")
        body = self._api.body(prompt, self._describe(model))
        with translate_errors(self._name, model, api_key=self._settings.api_key):
            async with self._session as session:
                response = await self._post(session, body)
                try:
                    events = EventReader()
                    while not decoder.is_complete and (arrived := await self._next_events(response, events)):
                        for event in arrived:
                            if text := decoder.add(event):
                                yield TextDelta(text=text)
                    if not events.has_events:
                        _require_stream(response, events.unread())
                finally:
                    self._session.release(response, is_complete=decoder.is_complete)
        # Outside of the session: the connection is free while the caller handles the last chunks.
        for chunk in decoder.end(model):
            yield chunk

    async def _post(self, session: ClientSession, body: Body) -> ClientResponse:
        response = await session.post(self._url, data=msgspec.json.encode(body), allow_redirects=False)
        if HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            return response
        try:
            rejection = ErrorResponse(await self._read_fault(response))
        finally:
            response.release()
        adapted = self._api.adapt(body, rejection)
        if adapted is None:
            raise rejection
        return await self._post(session, adapted)

    async def _next_events(self, response: ClientResponse, events: EventReader) -> list[ServerSentEvent]:
        """Wait for at least one event. Returns none at the end of the stream."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.idle_timeout
        received = await response.content.readany()
        while received and not (arrived := events.feed(received)):
            # Keep-alive bytes reset the timeout of the session, but not this one, which waits for an event.
            async with asyncio.timeout_at(deadline):
                received = await response.content.readany()
        return arrived if received else []

    async def _read_fault(self, response: ClientResponse) -> ProviderFault:
        body = bytearray()
        # If the body is cut, or takes too long, the status says enough.
        with suppress(ClientError, OSError):
            async with asyncio.timeout(self._settings.idle_timeout):
                while len(body) < MAX_ERROR_BYTES and (received := await response.content.readany()):
                    body += received
        return read_fault(json_or_text(bytes(body)), response.status, response.headers)


def _require_stream(response: ClientResponse, body: bytes) -> None:
    """Raise an error if a successful response was an error, or a page, or an answer that is not streamed."""
    if response.content_type not in _NO_STREAM:
        return
    content = json_or_text(body)
    if isinstance(content, dict) and content.get("error"):
        raise ErrorResponse(read_fault(content))
    raise ValueError(f"the response is not an event stream but {response.content_type}")


def decode_event(decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    try:
        return decoder.decode(data)
    except msgspec.DecodeError:
        # Python also reads half of a surrogate pair, which some endpoints send if an emoji is cut in two.
        return msgspec.convert(json.loads(data), decoder.type)


@dataclass(slots=True, kw_only=True)
class ToolCallBuffer:
    """One tool call whose arguments arrive as pieces of JSON text."""

    id: str = ""
    name: str = ""
    _pieces: list[str] = field(default_factory=list)
    _size: int = 0

    def add(self, piece: str) -> None:
        self._size += len(piece)
        if self._size > MAX_TOOL_CALL_BYTES:
            raise ProviderFailed(TOOL_CALL_TOO_LONG)
        self._pieces.append(piece)

    def tool_call(self) -> ToolCall:
        """Return the call. If its arguments are not a JSON object, it has a `fault` that the model is told."""
        usable_id = self.id if _USABLE_ID.fullmatch(self.id) else new_call_id()
        arguments = "".join(self._pieces)

        def refuse(constant: str) -> NoReturn:
            raise ValueError(f"{constant} is not valid JSON")  # Python would read NaN and Infinity.

        try:
            parsed: Json = json.loads(arguments, parse_constant=refuse) if arguments.strip() else {}
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, dict):
            return ToolCall(id=usable_id, name=self.name, input={}, fault=_INVALID_JSON)
        return ToolCall(id=usable_id, name=self.name, input=parsed)
