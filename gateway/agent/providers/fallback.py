"""The models of an agent in their order: the next is asked when one is down, overloaded or unknown."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from time import monotonic

import structlog
from msgspec.structs import replace

from gateway.agent.models import ModelInfo
from gateway.agent.protocol import Chunk, Prompt
from gateway.agent.providers.errors import CUT_OFF
from gateway.agent.providers.retry import Retrying, StreamResumption
from gateway.errors import ContextTooLong, ModelUnavailable, ProviderBusy, ProviderFailed

__all__ = ["Candidate", "ResilientProvider"]

log = structlog.get_logger()

PATIENCE = 4.0
"""Seconds for which a model is asked again while there is another to ask."""
REST = 60.0
"""Seconds for which a model that failed is passed over while there is another to ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    info: ModelInfo
    provider: Retrying
    model: str | None
    """Its name at the provider."""

    @property
    def name(self) -> str:
        return self.info.name


class ResilientProvider:
    """A provider that asks several. What one has said before it broke off, the next goes on with."""

    def __init__(
        self,
        own: Candidate,
        fallbacks: Sequence[Candidate] = (),
        *,
        find: Callable[[str], Candidate],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.own = own
        self._fallbacks = tuple(fallbacks)
        self._find = find
        self._clock = clock
        self._rests_until: dict[str, float] = {}

    def about(self, model: str) -> ModelInfo:
        """Tell what is known about the model that `Prompt.model` may name."""
        return self._candidate(model).info

    def skipped_models(self) -> list[str]:
        """Name the models that have failed lately, in whose place others are asked."""
        now = self._clock()
        return [name for name, until in self._rests_until.items() if until > now]

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        """Run one step. When none can answer, the person is told what is wrong with the first; the log has the rest."""
        answer = StreamResumption()
        first: ProviderFailed | None = None
        *_, last = candidates = self._in_order(prompt.model)
        for candidate in candidates:
            patience = None if candidate is last else PATIENCE
            try:
                async with aclosing(self._ask(candidate, prompt, answer, patience)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            except (ProviderBusy, ModelUnavailable) as failure:
                first = first or failure
                if candidate is last:
                    raise first from failure
                self._rest(candidate, failure)
            else:
                return

    async def _ask(
        self, candidate: Candidate, prompt: Prompt, answer: StreamResumption, patience: float | None
    ) -> AsyncGenerator[Chunk, None]:
        asked = replace(answer.prompt(prompt), model=candidate.model)
        try:
            async with aclosing(candidate.provider.stream(asked, patience=patience)) as chunks:
                async for chunk in chunks:
                    for ready in answer.take(chunk):
                        yield ready
        except ContextTooLong as grown:
            if not answer.said:
                raise
            raise ProviderFailed(CUT_OFF.format(model=candidate.model)) from grown  # It was shown, and is not repeated.
        for ready in answer.release():
            yield ready

    def _in_order(self, model: str | None) -> list[Candidate]:
        """Put those that failed a moment ago behind the others, and leave out repetitions."""
        first = self._candidate(model)
        unique: dict[str, Candidate] = {}
        for each in (first, *self._fallbacks):
            unique.setdefault(each.name, each)
        now = self._clock()
        return sorted(unique.values(), key=lambda each: self._rests_until.get(each.name, 0.0) > now)

    def _candidate(self, model: str | None) -> Candidate:
        return self.own if model in {None, self.own.model} else self._find(model or "")

    def _rest(self, candidate: Candidate, failure: ProviderBusy | ModelUnavailable) -> None:
        log.warning("model_passed_over", model=candidate.name, reason=str(failure))
        asked = failure.retry_after if isinstance(failure, ProviderBusy) else None
        self._rests_until[candidate.name] = self._clock() + (asked or REST)
