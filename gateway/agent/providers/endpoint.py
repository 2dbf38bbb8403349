"""A model endpoint as a provider: sends one request through the official SDK and streams the response.

`openai.py` and `anthropic.py` implement `ChatApi` for their API.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, NoReturn, Protocol, Self, TypeVar

from config import ProviderSettings
from gateway.agent.protocol import MAX_TOOL_CALL_BYTES, TOOL_CALL_TOO_LONG, Chunk, Prompt, TextDelta, new_call_id
from gateway.agent.providers.errors import translate_errors
from gateway.agent.providers.sdk_client import IsClosable, SharedClient
from gateway.conversation import Json, ToolCall
from gateway.errors import ProviderFailed

CUT_SHORT = "\n\n*(The answer ends here because the model reached its limit for one answer.)*"
DECLINED = "The model declined to answer that."
THOUGHT_ONLY = (
    "The model reached its limit for one answer before it wrote anything. "
    "The bot's operator can raise max_output_tokens."
)
NO_KEY = "none"
"""Stands in for the API key at servers that need none: the SDKs insist on a key."""

_USABLE_ID = re.compile(r"[A-Za-z0-9_-]{16,40}")
"""Shorter ids are counters that restart with each step. The APIs do not accept every other id of each other."""
_INVALID_JSON = "The arguments were not one complete JSON object. Send the call again with valid arguments."

Client = TypeVar("Client", bound=IsClosable)

Body = dict[str, Any]
"""A request in the API's own format."""


class EventStream(Protocol):
    """A response stream of the SDK. Leaving it ends the request."""

    def __aiter__(self) -> AsyncIterator[object]: ...

    async def __anext__(self) -> object: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class StreamDecoder(Protocol):
    """Turns the events of one stream into chunks."""

    def add(self, raw: object) -> Iterator[TextDelta]:
        """Decode one event. Text is passed on at once."""

    def end(self, model: str) -> Iterator[Chunk]:
        """Return tool calls, thoughts and usage. Raises `ProviderBusy` if the stream ended too early."""


class ChatApi(Protocol[Client]):
    """The parts that differ between APIs and their SDKs."""

    def connect(self) -> Client:
        """Import the SDK, which takes a second or two, and create a client. Runs in a thread."""

    def errors(self) -> tuple[type[Exception], ...]:
        """Return the exceptions that the SDK raises. Called after `connect`."""

    def body(self, prompt: Prompt) -> Body: ...

    async def send(self, client: Client, body: Body) -> EventStream:
        """Start a stream: send `body` as encoded JSON and return the raw events.

        The SDKs' typed methods would convert both field by field on the event loop: tens of milliseconds for a long
        conversation, and half of the work for each event.
        """

    def decoder(self, name: str) -> StreamDecoder: ...


class Endpoint(Generic[Client]):
    """Runs each step with one request. `ResilientProvider` retries."""

    def __init__(self, settings: ProviderSettings, name: str, api: ChatApi[Client]) -> None:
        self._settings = settings
        self._name = name
        self._api = api
        self._client = SharedClient(api.connect)

    async def warm_up(self) -> None:
        await self._client.warm_up()

    async def aclose(self) -> None:
        await self._client.aclose()

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        model = prompt.model or ""
        decoder = self._api.decoder(f"{self._name}/{model}")
        body = self._api.body(prompt)
        async with self._client.lease() as client:
            with translate_errors(self._name, model, *self._api.errors(), api_key=self._settings.api_key):
                async with await self._api.send(client, body) as events:
                    while True:
                        # Keep-alive bytes reset the socket's timeout, but not this one, which waits for an event.
                        try:
                            async with asyncio.timeout(self._settings.idle_timeout):
                                event = await anext(events)
                        except StopAsyncIteration:
                            break
                        for delta in decoder.add(event):
                            yield delta
        # Outside of the lease: the connection is free while the caller handles the last chunks.
        for chunk in decoder.end(model):
            yield chunk


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
