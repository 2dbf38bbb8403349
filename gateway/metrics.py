"""Counters and histograms of everything since the start. `observability/prometheus.py` renders them."""

import asyncio
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from time import time

from gateway.contract import Address, Verdict
from gateway.spool import AddUsage, RunState

Labels = tuple[str, ...]


class Histogram:
    """Counts values per bucket in constant memory."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Yield each bound with the number of values up to it. The last bound is infinite."""
        return zip((*self._bounds, float("inf")), accumulate(self._counts), strict=True)

    def bound_of(self, share: float) -> float:
        """Return the smallest bound that covers this share of the values, or 0 without values."""
        enough = share * self.count
        return next((bound for bound, count in self.cumulative() if count >= enough), 0.0) if enough else 0.0


_LAG_INTERVAL = 0.5
"""Seconds between two samples. Shorter stalls may fall between them."""


async def watch_lag(observe: Callable[[float], None], interval: float = _LAG_INTERVAL) -> None:
    """Call `observe` with the seconds by which the event loop woke up late, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + interval
        await asyncio.sleep(interval)
        observe(max(loop.time() - due, 0.0))


DELIVERED = "delivered"
DEAD = "dead"

_TURN_BOUNDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_MODEL_BOUNDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
_FLUSH_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_LAG_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

_MAX_MODELS = 50
OTHER = "other"
"""The label of all models after the first `_MAX_MODELS`. People can choose model names, and each is a time series."""


class Metrics:
    """The configuration bounds all labels. No label names a person or a chat."""

    def __init__(self, clock: Callable[[], float] = time) -> None:
        self._clock = clock
        self._models: set[str] = set()
        self.received: Counter[Labels] = Counter()
        """Messages by channel and verdict."""
        self.settled: Counter[Labels] = Counter()
        """Messages by channel and outcome of their turn."""
        self.commands: Counter[Labels] = Counter()
        self.schedule_runs: Counter[Labels] = Counter()
        """Runs of schedules by how they went."""
        self.replies: Counter[Labels] = Counter()
        """Parts of replies by channel, delivered or dead."""
        self.send_failures: Counter[Labels] = Counter()
        """Sends by channel that failed and are tried again."""
        self.turns: defaultdict[Labels, Histogram] = defaultdict(partial(Histogram, _TURN_BOUNDS))
        self.requests: Counter[Labels] = Counter()
        """Model requests by model and outcome."""
        self.answers: defaultdict[Labels, Histogram] = defaultdict(partial(Histogram, _MODEL_BOUNDS))
        """Seconds until a model's answer was complete."""
        self.first_words: defaultdict[Labels, Histogram] = defaultdict(partial(Histogram, _MODEL_BOUNDS))
        """Seconds until a model's answer began."""
        self.failing: Counter[str] = Counter()
        """Consecutive failures of each model."""
        self.last_failures: dict[str, tuple[float, str]] = {}
        """When each model failed last, and why."""
        self.tokens: Counter[Labels] = Counter()
        self.cost_micros: Counter[Labels] = Counter()
        self.archived: Counter[Labels] = Counter()
        """Sessions, or parts of them, that went into the memory, by outcome."""
        self.spans: Counter[Labels] = Counter()
        """Spans of traces by what became of them. Empty without tracing."""
        self.flushes = Histogram(_FLUSH_BOUNDS)
        self.lag = Histogram(_LAG_BOUNDS)
        self.last_events: dict[tuple[str, str], float] = {}
        """The time of the last event by channel and account."""

    def message_received(self, address: Address, verdict: Verdict) -> None:
        self.received[address.channel, verdict] += 1
        self.last_events[address.channel, address.account] = self._clock()

    def schedule_run(self, state: RunState) -> None:
        self.schedule_runs[(state,)] += 1

    def command_run(self, channel: str, command: str) -> None:
        self.commands[channel, command] += 1

    def turn_finished(self, channel: str, outcome: str, *, messages: int, took_ms: float) -> None:
        self.settled[channel, outcome] += messages
        self.turns[(channel,)].observe(took_ms / 1000)

    def message_abandoned(self, channel: str, outcome: str) -> None:
        """Count a message that will not be answered."""
        self.settled[channel, outcome] += 1

    def reply_finished(self, channel: str, outcome: str) -> None:
        self.replies[channel, outcome] += 1

    def model_called(
        self, model: str, outcome: str, *, seconds: float, first_word: float | None, reason: str = ""
    ) -> None:
        """Count one step of a model. `seconds` includes the waits between its retries. `reason` is why it failed."""
        label = self._label(model)
        if outcome == "failed":
            self.last_failures[label] = (self._clock(), reason)
        self.requests[label, outcome] += 1
        self.failing[label] = self.failing[label] + 1 if outcome == "failed" else 0
        self.answers[(label,)].observe(seconds)
        if first_word is not None:
            self.first_words[(label,)].observe(first_word)

    def usage_added(self, usage: AddUsage) -> None:
        label = self._label(usage.model)
        self.tokens[label, "input"] += usage.input_tokens
        self.tokens[label, "cached"] += usage.cached_tokens
        self.tokens[label, "output"] += usage.output_tokens
        self.cost_micros[(label,)] += usage.cost_micros

    def _label(self, model: str) -> str:
        if len(self._models) < _MAX_MODELS:
            self._models.add(model)
        return model if model in self._models else OTHER
