"""Asking a model again when it is busy or out of reach, without repeating what it has said already."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from time import monotonic

import structlog
from msgspec.structs import replace

from gateway.agent.protocol import Chunk, Prompt, Provider, TextDelta
from gateway.aio import backoff_delays
from gateway.conversation import AssistantMessage, UserMessage
from gateway.errors import ProviderBusy

log = structlog.get_logger()

_GO_ON = (
    "[The connection broke after your last words, which have arrived. Go on exactly where you stopped, "
    "in the middle of the word if need be. Do not repeat anything, and do not mention this.]"
)
_LONGEST_OVERLAP = 80
_SHORTEST_OVERLAP = 4


@dataclass(slots=True)
class StreamResumption:
    """Keeps what has been said in a step; when it has to be asked for again, asks for the rest alone.

    The rest may begin with the last words again: those are left out, for which its first few characters are held back.
    """

    said: str = ""
    _held: list[TextDelta] | None = field(default=None)

    def prompt(self, prompt: Prompt) -> Prompt:
        """Return what to ask: `prompt` itself, or after a cut, that it be gone on with."""
        if not self.said.strip():
            self.said = ""
            return prompt
        self._held = []
        cut = (AssistantMessage(text=self.said), UserMessage(text=_GO_ON))
        return replace(prompt, messages=(*prompt.messages, *cut))

    def take(self, chunk: Chunk) -> list[Chunk]:
        """Return what to pass on now that `chunk` has come."""
        if not isinstance(chunk, TextDelta):
            return [*self.release(), chunk]
        if self._held is None:
            self.said += chunk.text
            return [chunk]
        self._held.append(chunk)
        is_enough = sum(len(delta.text) for delta in self._held) >= _LONGEST_OVERLAP
        return [*self.release()] if is_enough else []

    def release(self) -> list[Chunk]:
        """Return what was held back, without what had been said before; call it at the end of the stream, too."""
        text = "".join(delta.text for delta in self._held or ())
        self._held = None
        fresh = text[_overlap(self.said, text) :]
        self.said += fresh
        return [TextDelta(text=fresh)] if fresh else []


def _overlap(said: str, text: str) -> int:
    """Return how much of the beginning of `text` is the end of `said`: a few characters may be so by chance."""
    for length in range(min(len(said), len(text), _LONGEST_OVERLAP), _SHORTEST_OVERLAP - 1, -1):
        if said.endswith(text[:length]):
            return length
    return 0


MAX_CUTS = 3
"""How often a stream that has begun is resumed: a model that never gets to its end must not be paid for ever."""
_LONGEST_WAIT = 20.0


class Retrying:
    """Asks for `patience` seconds since the model last said something, with growing waits, each as long as it asked.

    When it has asked to be left alone, all conversations leave it alone.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        patience: float,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._provider = provider
        self._patience = patience
        self._sleep = sleep
        self._clock = clock
        self._not_before: dict[str | None, float] = {}

    async def stream(self, prompt: Prompt, *, patience: float | None = None) -> AsyncGenerator[Chunk, None]:
        """Run one step; `patience` may be less than usual where there is another model to ask."""
        limit = self._patience if patience is None else min(patience, self._patience)
        answer = StreamResumption()
        waits, failing_since, cuts = backoff_delays(cap=_LONGEST_WAIT), self._clock(), 0
        await self._leave_alone(prompt.model, limit)
        while True:
            heard = False
            try:
                async with aclosing(self._provider.stream(answer.prompt(prompt))) as chunks:
                    async for chunk in chunks:
                        heard = True
                        for ready in answer.take(chunk):
                            yield ready
            except ProviderBusy as busy:
                if heard:
                    waits, failing_since, cuts = backoff_delays(cap=_LONGEST_WAIT), self._clock(), cuts + 1
                wait = self._wait(busy, prompt.model, next(waits))
                if cuts > MAX_CUTS or self._clock() + wait > failing_since + limit:
                    log.warning("model_given_up", model=prompt.model, cuts=cuts, reason=str(busy))
                    raise
            else:
                for ready in answer.release():
                    yield ready
                return
            await self._sleep(wait)

    def _wait(self, busy: ProviderBusy, model: str | None, wait: float) -> float:
        """Wait as long as the model asked, and a little more, so that not all come back in the same moment."""
        if busy.retry_after is None:
            return wait
        self._not_before[model] = self._clock() + busy.retry_after
        return busy.retry_after + wait

    async def _leave_alone(self, model: str | None, limit: float) -> None:
        """Wait until the time that the model has asked for is over; beyond `limit`, let it say so again itself."""
        rest = self._not_before.get(model, 0.0) - self._clock()
        if 0 < rest <= limit:
            await self._sleep(rest + next(backoff_delays()))
