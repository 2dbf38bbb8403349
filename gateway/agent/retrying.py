"""Asking a model again when it is busy or out of reach, without repeating what it has said already."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from time import monotonic

import structlog

from gateway.agent.provider import Chunk, Prompt, Provider
from gateway.agent.resuming import Resumption
from gateway.aio import backoff
from gateway.errors import ProviderBusy

__all__ = ["Retrying"]

log = structlog.get_logger()

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
        answer = Resumption()
        waits, failing_since, cuts = backoff(cap=_LONGEST_WAIT), self._clock(), 0
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
                    waits, failing_since, cuts = backoff(cap=_LONGEST_WAIT), self._clock(), cuts + 1
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
            await self._sleep(rest + next(backoff()))
