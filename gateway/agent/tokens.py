"""Token estimates without a tokeniser, calibrated by the usage that the provider reports.

A text is measured with a fixed table: how many tokens a typical tokeniser makes of each kind of character. Each model
has one factor on top of that, which is learned from its reports of usage. docs/adr/0024 has the figures.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from string import ascii_letters, digits
from time import monotonic

import msgspec

from gateway.agent.protocol import ToolSpec
from gateway.bounded import BoundedDict
from gateway.conversation import AssistantMessage, Message, ToolMessage

_LETTERS_AND_BLANKS = ascii_letters.encode() + b" \t\n\r\v\f"
_DIGITS = digits.encode()
_TOKENS_PER_CHARACTER = (
    (_LETTERS_AND_BLANKS, 0.24),
    (_DIGITS, 1.0),
    (bytes(set(range(0x80)) - {*_LETTERS_AND_BLANKS, *_DIGITS}), 0.3),
    # A character beyond ASCII counts by the first byte of its UTF-8, which tells its length; the other bytes are free.
    (bytes(range(0x80, 0xC0)), 0.0),
    (bytes(range(0xC0, 0xE0)), 0.4),  # Two bytes: Cyrillic, Greek, Arabic, umlauts.
    (bytes(range(0xE0, 0xF0)), 0.9),  # Three: Chinese, Japanese, Korean, Indic scripts.
    (bytes(range(0xF0, 0x100)), 2.2),  # Four: emoji.
)
"""Fitted to the mean of six tokenisers: two of OpenAI, Claude, DeepSeek, Mistral, Qwen."""
_CACHED_LENGTH = 500
"""Characters of a text whose measure is cached. The limit bounds the memory of the cache to a few megabytes."""
_PER_REQUEST = 12.0
_PER_MESSAGE = 4.0
_PER_PICTURE = 1_200.0

_CREDIBLE = (0.1, 10.0)
"""A report outside these multiples of the measure does not count the text that was sent, so it is ignored."""
_RISE, _FALL = 0.7, 0.3
_HALF_TRUSTED = 2_000.0
"""The size of a request whose report is trusted by half."""
_CEILING_TTL = 3_600.0
"""Seconds for which a rejected request limits the size of later ones."""

_MAX_MODELS = 64
_MIN_CHANGE = 0.02
"""How far a factor must move before it is written again."""


def measure(text: str) -> float:
    """Return how many tokens a typical tokeniser makes of `text`.

    A megabyte takes from one millisecond (English) to ten (Chinese), so long texts are measured in a thread.
    """
    # Every request of a conversation contains its earlier messages again, and most of them are short.
    return _measure_cached(text) if len(text) <= _CACHED_LENGTH else _measure_uncached(text)


def _measure_uncached(text: str) -> float:
    left = text.encode("utf-8", "replace")
    tokens = 0.0
    for kind, each in _TOKENS_PER_CHARACTER:
        if not left:
            break
        others = left.translate(None, kind)
        tokens += each * (len(left) - len(others))
        left = others
    return tokens


_measure_cached = lru_cache(maxsize=4096)(_measure_uncached)
_measure_tool = lru_cache(maxsize=512)(_measure_uncached)


def measure_message(message: Message) -> float:
    if isinstance(message, ToolMessage):
        return _PER_MESSAGE + sum(measure(outcome.output) for outcome in message.outcomes)
    tokens = _PER_MESSAGE + measure(message.text)
    if isinstance(message, AssistantMessage):
        # The repr of a dict is about as long as its JSON, and several times as fast.
        for call in message.tool_calls:
            tokens += measure(f"{call.name} {call.input}")
        for thought in message.thoughts:
            tokens += measure(str(thought.shape))
    else:
        if message.sender or message.sender_id:
            tokens += measure(message.sender) + measure(message.sender_id)
        for picture in message.pictures:
            tokens += _PER_PICTURE * bool(picture.data)
    return tokens


def measure_frame(system: str, tools: Iterable[ToolSpec]) -> float:
    """Measure a request without messages: its system prompt and its tools."""
    texts = [tool.text for tool in tools]
    return _PER_REQUEST + measure(system) + _PER_MESSAGE * len(texts) + sum(map(_measure_tool, texts))


class Calibration:
    """The learned factor between the measure of a text and the tokens that one model counts."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor
        self._ceiling: tuple[int, float] | None = None

    def estimate(self, measured: float) -> int:
        return round(measured * self.factor)

    def learn(self, measured: float, tokens: int) -> None:
        """Learn that the provider counted `tokens` of input for a request of this measure."""
        low, high = _CREDIBLE
        if measured <= 0 or not low < tokens / measured < high:
            return
        error = tokens / measured - self.factor
        # A short request is mostly the provider's own wrapping, which says little about longer ones.
        trust = measured / (measured + _HALF_TRUSTED)
        # Too low an estimate costs a refused request, too high a one only some context: rise fast and fall slowly.
        self.factor += error * trust * (_RISE if error > 0 else _FALL)

    @property
    def ceiling(self) -> int | None:
        """The estimate of a request that the model refused as too long within the last hour."""
        return self._ceiling[0] if self._ceiling and monotonic() < self._ceiling[1] else None

    def too_long(self, estimate: int) -> None:
        self._ceiling = (min(estimate, self.ceiling or estimate), monotonic() + _CEILING_TTL)


class Calibrations:
    """One calibration per model; the least recently used are dropped."""

    def __init__(self, stored: str | None = None) -> None:
        """Start from the text that `unsaved_changes` returned before; unreadable text counts as no text."""
        self._models = BoundedDict[str, Calibration](_MAX_MODELS)
        try:
            read = msgspec.json.decode(stored or "{}", type=dict[str, float | Sequence[float]])
        except msgspec.DecodeError:
            read = {}
        # Earlier versions kept eleven weights per model under the same name. They are dropped; a few reports suffice.
        factors = {model: each for model, each in read.items() if isinstance(each, float)}
        self._written = {model: each for model, each in factors.items() if _CREDIBLE[0] < each < _CREDIBLE[1]}
        for model in list(self._written)[-_MAX_MODELS:]:
            self._models[model] = Calibration(self._written[model])

    def __getitem__(self, model: str) -> Calibration:
        calibration = self._models.get(model) or self._models.setdefault(model, Calibration())
        self._models.move_to_end(model)
        return calibration

    def unsaved_changes(self) -> str | None:
        """Return all factors as text to store, or None if none has changed much since the last call."""
        factors = {model: calibration.factor for model, calibration in self._models.items()}
        if all(abs(now / self._written.get(model, 1.0) - 1) <= _MIN_CHANGE for model, now in factors.items()):
            return None
        self._written = factors
        return msgspec.json.encode({model: round(factor, 4) for model, factor in factors.items()}).decode()
