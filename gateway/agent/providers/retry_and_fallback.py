"""Retries with backoff, and fallbacks: asks a busy model again, then the next model, and resumes a cut stream."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from time import monotonic

import structlog
from msgspec.structs import replace

from gateway.agent.models import ModelInfo
from gateway.agent.protocol import CUT_OFF, Chunk, Prompt, Provider, TextDelta
from gateway.aio import backoff_delays
from gateway.conversation import AssistantMessage, UserMessage
from gateway.errors import ContextTooLong, ModelUnavailable, ProviderBusy, ProviderFailed

log = structlog.get_logger()

PATIENCE_BEFORE_FALLBACK = 4.0
"""Seconds of retries for a model while the agent has another one to ask."""
SKIP_FAILED_MODEL = 60.0
"""Seconds for which a failed model is asked last."""
MAX_CUTS = 3
"""How often a stream is resumed at one model: a model that never finishes would cost money forever."""
MAX_BACKOFF = 20.0

_MAX_OVERLAP = 80
_MIN_OVERLAP = 4
_CONTINUE = (
    "[The connection broke after your last words, which have arrived. Go on exactly where you stopped, "
    "in the middle of the word if need be. Do not repeat anything, and do not mention this.]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A model that an agent may ask."""

    info: ModelInfo
    provider: Provider
    model: str | None
    """Its name at the provider."""
    patience: float
    """Seconds of retries since the model last sent something."""


class ResilientProvider:
    """Asks an agent's models in order. If one breaks off in the middle of an answer, the next continues that answer."""

    def __init__(
        self,
        own: Candidate,
        fallbacks: Sequence[Candidate] = (),
        *,
        find: Callable[[str], Candidate],
        retry_times: dict[str, float] | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Start with `own`. `find` looks up any other model that `Prompt.model` names.

        `retry_times` tells when each rate-limited model may be asked again. All agents share it.
        """
        self.own = own
        self._fallbacks = tuple(fallbacks)
        self._find = find
        self._retry_times = {} if retry_times is None else retry_times
        self._sleep = sleep
        self._clock = clock
        self._skipped_until: dict[str, float] = {}

    def about(self, model: str) -> ModelInfo:
        """Return the facts about a model that `Prompt.model` may name."""
        return self.own.info if model == self.own.model else self._find(model).info

    def skipped_models(self) -> list[str]:
        """Return the models that failed recently, so that others are asked first."""
        now = self._clock()
        return [name for name, until in self._skipped_until.items() if until > now]

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        """Run one step. If every model fails, raise the first model's failure; the log has the others."""
        answer = StreamResumption()
        first_failure: ProviderFailed | None = None
        candidates = self._in_order(prompt.model, prompt.excluded)
        while candidates:
            candidate = candidates.pop(0)
            model = candidate.info.name
            patience = min(candidate.patience, PATIENCE_BEFORE_FALLBACK) if candidates else candidate.patience
            # A model that named a time to wait is left alone by all conversations. If that time exceeds the patience,
            # the model is asked anyway, and its answer tells the person how long to wait.
            wait = self._retry_times.get(model, 0.0) - self._clock()
            if 0 < wait <= patience:
                await self._sleep(wait + next(backoff_delays()))
            delays, failing_since, cuts = backoff_delays(cap=MAX_BACKOFF), self._clock(), 0
            while True:
                has_sent = False
                try:
                    request = replace(answer.request(prompt), model=candidate.model)
                    async with aclosing(candidate.provider.stream(request)) as chunks:
                        async for chunk in chunks:
                            has_sent = True
                            for ready in answer.add(chunk):
                                yield ready
                    for ready in answer.flush():
                        yield ready
                except ContextTooLong as too_long:
                    if not answer.text:
                        raise
                    # The caller would shorten the request and repeat it, but part of the answer has been shown.
                    raise ProviderFailed(CUT_OFF.format(model=candidate.model)) from too_long
                except ModelUnavailable as unavailable:
                    failure: ProviderBusy | ModelUnavailable = unavailable
                    break
                except ProviderBusy as busy:
                    failure = busy
                    if has_sent:
                        delays, failing_since, cuts = backoff_delays(cap=MAX_BACKOFF), self._clock(), cuts + 1
                    delay = next(delays)
                    if busy.retry_after is not None:
                        self._retry_times[model] = self._clock() + busy.retry_after
                        delay += busy.retry_after  # A bit more than asked, so that not all come back at once.
                    if cuts > MAX_CUTS or self._clock() + delay > failing_since + patience:
                        log.warning("model_retries_exhausted", model=model, cuts=cuts, reason=str(busy))
                        break
                    await self._sleep(delay)
                else:
                    return
            first_failure = first_failure or failure
            if candidates:
                log.warning("model_skipped", model=model, reason=str(failure))
                retry_after = failure.retry_after if isinstance(failure, ProviderBusy) else None
                self._skipped_until[model] = self._clock() + (retry_after or SKIP_FAILED_MODEL)
        if first_failure is not None:
            raise first_failure

    def _in_order(self, model: str | None, excluded: Collection[str]) -> list[Candidate]:
        """Return each model once, those that failed recently last."""
        first = self.own if model in {None, self.own.model} else self._find(model or "")
        unique: dict[str, Candidate] = {}
        fallbacks = [each for each in self._fallbacks if each.info.name not in excluded]
        for each in (first, *fallbacks):
            unique.setdefault(each.info.name, each)
        now = self._clock()
        return sorted(unique.values(), key=lambda each: self._skipped_until.get(each.info.name, 0.0) > now)


@dataclass(slots=True)
class StreamResumption:
    """Collects the text of a step. If the stream is cut, asks only for the rest.

    The rest may start with the last words again. To leave those out, its first few characters are held back.
    """

    text: str = ""
    _held: list[str] | None = field(default=None)

    def request(self, prompt: Prompt) -> Prompt:
        """Return `prompt` for the first try. After a cut, add the text so far and ask the model to continue it."""
        if not self.text.strip():
            self.text = ""
            return prompt
        self._held = []
        continuation = (AssistantMessage(text=self.text), UserMessage(text=_CONTINUE))
        return replace(prompt, messages=(*prompt.messages, *continuation))

    def add(self, chunk: Chunk) -> Sequence[Chunk]:
        """Return the chunks to pass on, now that `chunk` has arrived."""
        if not isinstance(chunk, TextDelta):
            return (*self.flush(), chunk)
        if self._held is None:
            self.text += chunk.text
            return (chunk,)
        self._held.append(chunk.text)
        return self.flush() if sum(map(len, self._held)) >= _MAX_OVERLAP else ()

    def flush(self) -> Sequence[Chunk]:
        """Return the text that was held back, without the repeated part. Also call it at the end of the stream."""
        if self._held is None:
            return ()
        rest = "".join(self._held)
        self._held = None
        # Fewer than `_MIN_OVERLAP` equal characters may be a coincidence.
        for length in range(min(len(self.text), len(rest), _MAX_OVERLAP), _MIN_OVERLAP - 1, -1):
            if self.text.endswith(rest[:length]):
                rest = rest[length:]
                break
        self.text += rest
        return (TextDelta(text=rest),) if rest else ()
