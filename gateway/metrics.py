"""The metrics: what has happened since the start, counted where it happens at the price of a dictionary's look-up."""

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from time import time

from gateway.contract import Address, Verdict
from gateway.spool import AddUsage


class Histogram:
    """Costs a search among a dozen numbers for each value, and stays as small as it is."""

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
        """Yield each bound with how many values were at most that; the last bound is infinite."""
        return zip((*self._bounds, float("inf")), accumulate(self._counts), strict=True)

    def bound_of(self, share: float) -> float:
        """Return the least bound that this share of the values kept to; 0 when there are none."""
        enough = share * self.count
        return next((bound for bound, count in self.cumulative() if count >= enough), 0.0) if enough else 0.0


_EVERY = 0.5
"""Seconds between two looks; shorter hold-ups may fall between them, and hurt nobody."""


async def watch_lag(note: Callable[[float], None], every: float = _EVERY) -> None:
    """Call `note` with the seconds by which each awakening was late, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + every
        await asyncio.sleep(every)
        note(max(loop.time() - due, 0.0))


DELIVERED = "delivered"
DEAD = "dead"

_TURN = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_MODEL = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)
_DISK = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_LAG = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

_MOST_MODELS = 50
OTHER = "other"
"""Stands for every model beyond the first so many: whoever names models must not fill the memory, here or there."""


class Metrics:
    """Only ever grows, and only by labels that the configuration bounds; nothing in it names a person or a chat."""

    def __init__(self, clock: Callable[[], float] = time) -> None:
        self._clock = clock
        self._models: set[str] = set()
        self.received: Counter[tuple[str, ...]] = Counter()
        """Messages by channel and verdict."""
        self.settled: Counter[tuple[str, ...]] = Counter()
        """Messages by channel and by how the turn that answered them ended."""
        self.commands: Counter[tuple[str, ...]] = Counter()
        self.replies: Counter[tuple[str, ...]] = Counter()
        """Parts of replies by channel, delivered or dead."""
        self.turns: dict[tuple[str, ...], Histogram] = {}
        self.requests: Counter[tuple[str, ...]] = Counter()
        """Steps by model and by how they ended."""
        self.answers: dict[tuple[str, ...], Histogram] = {}
        """Seconds until a model's answer was whole, and until it began."""
        self.first_words: dict[tuple[str, ...], Histogram] = {}
        self.failing: Counter[str] = Counter()
        """How often in a row each model has failed."""
        self.tokens: Counter[tuple[str, ...]] = Counter()
        self.cost_micros: Counter[tuple[str, ...]] = Counter()
        self.flushes = Histogram(_DISK)
        self.lag = Histogram(_LAG)
        self.last_events: dict[tuple[str, str], float] = {}
        """When each channel and account was last heard from."""

    def message_received(self, address: Address, verdict: Verdict) -> None:
        self.received[address.channel, verdict] += 1
        self.last_events[address.channel, address.account] = self._clock()

    def command_run(self, channel: str, command: str) -> None:
        self.commands[channel, command] += 1

    def turn_finished(self, channel: str, outcome: str, *, messages: int, took_ms: float) -> None:
        self.settled[channel, outcome] += messages
        _of(self.turns, (channel,), _TURN).observe(took_ms / 1000)

    def message_abandoned(self, channel: str, outcome: str) -> None:
        """Count a message that no turn will answer any more."""
        self.settled[channel, outcome] += 1

    def reply_finished(self, channel: str, outcome: str) -> None:
        self.replies[channel, outcome] += 1

    def model_called(self, model: str, outcome: str, *, seconds: float, first_word: float | None) -> None:
        """Count one step of a model, with the waits for it to be asked again."""
        model = self._known(model)
        self.requests[model, outcome] += 1
        self.failing[model] = self.failing[model] + 1 if outcome == "failed" else 0
        _of(self.answers, (model,), _MODEL).observe(seconds)
        if first_word is not None:
            _of(self.first_words, (model,), _MODEL).observe(first_word)

    def usage_added(self, spend: AddUsage) -> None:
        model = self._known(spend.model)
        self.tokens[model, "input"] += spend.input_tokens
        self.tokens[model, "cached"] += spend.cached_tokens
        self.tokens[model, "output"] += spend.output_tokens
        self.cost_micros[(model,)] += spend.cost_micros

    def _known(self, model: str) -> str:
        if len(self._models) < _MOST_MODELS:
            self._models.add(model)
        return model if model in self._models else OTHER


def _of(kept: dict[tuple[str, ...], Histogram], key: tuple[str, ...], bounds: tuple[float, ...]) -> Histogram:
    found = kept.get(key)
    if found is None:
        found = kept[key] = Histogram(bounds)
    return found
