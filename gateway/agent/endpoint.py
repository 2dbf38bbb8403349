"""A model's endpoint as a provider: one request and its stream, by whichever official SDK speaks the API's dialect."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from config import ProviderSettings
from gateway.agent.connection import Connection, IsClosable
from gateway.agent.failures import translated
from gateway.agent.provider import Chunk, Prompt, TextDelta
from gateway.agent.punctual import punctual

__all__ = ["NO_KEY", "Answer", "Body", "Dialect", "Endpoint", "Events"]

Client = TypeVar("Client", bound=IsClosable)

Body = dict[str, Any]
"""A request in the API's own shape."""

NO_KEY = "none"
"""The SDKs insist on a key; a server that needs none does not look at it."""


class Events(Protocol):
    """The stream of an answer, as the SDK gives it; leaving it ends the request."""

    def __aiter__(self) -> AsyncIterator[object]: ...

    async def __anext__(self) -> object: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Answer(Protocol):
    """Puts the events of a stream together. Calls, thoughts and usage are handed over at its end, if it has one."""

    def take(self, raw: object) -> Iterator[TextDelta]: ...

    def end(self, model: str) -> Iterator[Chunk]: ...


class Dialect(Protocol[Client]):
    """What is peculiar to one API and its SDK."""

    def connect(self) -> Client:
        """Import the SDK, which takes a second or two, and make a client: in a thread, and only where it is used."""

    def errors(self) -> tuple[type[Exception], ...]:
        """Return what the SDK raises; it has been imported by now."""

    def body(self, prompt: Prompt) -> Body: ...

    async def ask(self, client: Client, body: Body) -> Events:
        """Begin a stream: send `body` as it is, encoded, and take events as they are.

        The SDKs' typed way would take the one apart and put the other together field by field, on the event loop:
        tens of milliseconds for a long conversation, and half of the work for each event.
        """

    def answer(self, name: str) -> Answer: ...


class Endpoint(Generic[Client]):
    """One try at a step: whoever asks again is `Retrying`."""

    def __init__(self, settings: ProviderSettings, name: str, dialect: Dialect[Client]) -> None:
        self._settings = settings
        self._name = name
        self._dialect = dialect
        self._connection = Connection(dialect.connect)

    async def warm_up(self) -> None:
        await self._connection.warm_up()

    async def aclose(self) -> None:
        await self._connection.aclose()

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        model = prompt.model or ""
        answer = self._dialect.answer(f"{self._name}/{model}")
        body = self._dialect.body(prompt)
        async with self._connection.lease() as client:
            with translated(self._name, model, *self._dialect.errors()):
                async with await self._dialect.ask(client, body) as events:
                    async for event in punctual(events, self._settings.idle_timeout):
                        for delta in answer.take(event):
                            yield delta
        for rest in answer.end(model):
            yield rest
