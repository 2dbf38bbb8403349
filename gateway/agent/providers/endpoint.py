"""A model's endpoint as a provider: one request and its stream, by whichever official SDK speaks the API's dialect."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from config import ProviderSettings
from gateway.agent.loop import MAX_TOOL_CALL_BYTES, TOOL_CALL_TOO_LONG, new_call_id
from gateway.agent.protocol import Chunk, Prompt, TextDelta
from gateway.agent.providers.errors import translate_errors
from gateway.agent.providers.sdk_client import IsClosable, SharedClient
from gateway.conversation import Json, ToolCall
from gateway.errors import ProviderFailed

_USABLE_ID = re.compile(r"[A-Za-z0-9_-]{16,40}")
"""Shorter ones are counters that begin anew with each step; others are not taken by every API."""
_NO_JSON = "The arguments were not one whole JSON object. Send the call again, with arguments that are."


@dataclass(slots=True, kw_only=True)
class ToolCallBuffer:
    """One call whose arguments come as pieces of JSON text."""

    id: str = ""
    name: str = ""
    _texts: list[str] = field(default_factory=list)
    _size: int = 0

    def add(self, text: str) -> None:
        self._size += len(text)
        if self._size > MAX_TOOL_CALL_BYTES:
            raise ProviderFailed(TOOL_CALL_TOO_LONG)
        self._texts.append(text)

    def whole(self) -> ToolCall:
        return parse_tool_call(self.id, self.name, "".join(self._texts))


def parse_tool_call(call_id: str, name: str, arguments: str) -> ToolCall:
    usable_id = call_id if _USABLE_ID.fullmatch(call_id) else new_call_id()
    try:
        parsed: Json = json.loads(arguments, parse_constant=_refuse) if arguments.strip() else {}
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        return ToolCall(id=usable_id, name=name, input={}, fault=_NO_JSON)
    return ToolCall(id=usable_id, name=name, input=parsed)


def _refuse(constant: str) -> None:
    raise ValueError(f"JSON has no {constant}")


CUT_SHORT = "\n\n*(It ends here because the model has reached its limit for one answer.)*"
DECLINED = "The model declined to answer that."
THOUGHT_ONLY = (
    "The model has used up its limit for one answer without having said anything. "
    "Its operator can raise max_output_tokens."
)


T = TypeVar("T")


async def with_idle_timeout(stream: AsyncIterator[T], idle: float) -> AsyncGenerator[T, None]:
    """Pass a stream on; raise TimeoutError when an item takes longer than `idle` seconds, however many bytes come."""
    while True:
        try:
            async with asyncio.timeout(idle):
                item = await anext(stream)
        except StopAsyncIteration:
            return
        yield item


Client = TypeVar("Client", bound=IsClosable)

Body = dict[str, Any]
"""A request in the API's own shape."""

NO_KEY = "none"
"""The SDKs insist on a key; a server that needs none does not look at it."""


class EventStream(Protocol):
    """The stream of an answer, as the SDK gives it; leaving it ends the request."""

    def __aiter__(self) -> AsyncIterator[object]: ...

    async def __anext__(self) -> object: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class StreamDecoder(Protocol):
    """Puts the events of a stream together. Calls, thoughts and usage are handed over at its end, if it has one."""

    def take(self, raw: object) -> Iterator[TextDelta]: ...

    def end(self, model: str) -> Iterator[Chunk]: ...


class ChatApi(Protocol[Client]):
    """What is peculiar to one API and its SDK."""

    def connect(self) -> Client:
        """Import the SDK, which takes a second or two, and make a client: in a thread, and only where it is used."""

    def errors(self) -> tuple[type[Exception], ...]:
        """Return what the SDK raises; it has been imported by now."""

    def body(self, prompt: Prompt) -> Body: ...

    async def ask(self, client: Client, body: Body) -> EventStream:
        """Begin a stream: send `body` as it is, encoded, and take events as they are.

        The SDKs' typed way would take the one apart and put the other together field by field, on the event loop:
        tens of milliseconds for a long conversation, and half of the work for each event.
        """

    def answer(self, name: str) -> StreamDecoder: ...


class Endpoint(Generic[Client]):
    """One try at a step: whoever asks again is `Retrying`."""

    def __init__(self, settings: ProviderSettings, name: str, dialect: ChatApi[Client]) -> None:
        self._settings = settings
        self._name = name
        self._dialect = dialect
        self._connection = SharedClient(dialect.connect)

    async def warm_up(self) -> None:
        await self._connection.warm_up()

    async def aclose(self) -> None:
        await self._connection.aclose()

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        model = prompt.model or ""
        answer = self._dialect.answer(f"{self._name}/{model}")
        body = self._dialect.body(prompt)
        async with self._connection.lease() as client:
            with translate_errors(self._name, model, *self._dialect.errors()):
                async with await self._dialect.ask(client, body) as events:
                    async for event in with_idle_timeout(events, self._settings.idle_timeout):
                        for delta in answer.take(event):
                            yield delta
        for rest in answer.end(model):
            yield rest
