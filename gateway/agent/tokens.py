"""How many tokens a text is, counted without its tokeniser: by what it is made of, and by what the provider charged.

A text is measured by its kinds of characters; each kind has a weight, and weights are learned for each model from the
usage that its provider reports. Nothing is downloaded and no network is asked.
"""

import json
from collections import deque
from collections.abc import Iterable, Sequence
from operator import mul
from string import ascii_letters, digits
from time import monotonic

from gateway.agent.provider import ToolSpec
from gateway.dialogue import AssistantMessage, Message, ToolMessage, UserMessage

__all__ = [
    "DEFAULT_WEIGHTS",
    "NOTHING",
    "ONE_REQUEST",
    "Calibration",
    "Measure",
    "measure",
    "measure_message",
    "measure_tools",
    "total",
]

Measure = tuple[int, ...]
"""How much of each kind there is, in the order of `DEFAULT_WEIGHTS`."""

# Requests, messages, words, letters, digits, other ASCII, blanks beyond one per word, characters of 2, 3 and 4 bytes,
# pictures.
DEFAULT_WEIGHTS = (12.0, 4.0, 0.75, 0.1, 0.4, 0.65, 0.15, 0.55, 1.0, 2.2, 1_200.0)
_LEEWAY = (8.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.9, 0.5, 0.5, 0.5, 0.5)
"""How far each weight may well be off, as a part of itself."""

_LETTERS = ascii_letters.encode()
_DIGITS = digits.encode()
_BLANKS = b" \t\n\r\v\f"
_CONTINUED = bytes(range(0x80, 0xC0))
_LEADS = (bytes(range(0xC0, 0xE0)), bytes(range(0xE0, 0xF0)), bytes(range(0xF0, 0x100)))

_KEPT = 24
"""Reports by which a model is judged; older ones are forgotten, so that a changed tokeniser is followed."""
_FADING = 0.92
_NOISE = 0.02
_SCALE_DOUBT = 0.3
"""How much of a report it takes to believe that all weights are off by the same factor."""
_CEILING_HOLDS = 3_600.0
_LIMITS = (0.2, 5.0)
"""No weight leaves these multiples of its default, whatever a provider reports."""
_CREDIBLE = (0.1, 10.0)
"""A report further than this from what was expected says nothing about text: it is left out."""

NOTHING: Measure = (0,) * 11
ONE_REQUEST: Measure = (1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def measure(text: str) -> Measure:
    """Measure a text at about a gigabyte per second; a megabyte and more is still better done in a thread."""
    data = text.encode("utf-8", "replace")
    words = len(data.split())
    rest = data.translate(None, _LETTERS)
    letters = len(data) - len(rest)
    left = rest.translate(None, _DIGITS)
    numerals = len(rest) - len(left)
    marks = left.translate(None, _BLANKS)
    blanks = max(0, len(left) - len(marks) - words)
    if marks.isascii():
        return (0, 0, words, letters, numerals, len(marks), blanks, 0, 0, 0, 0)
    return (0, 0, words, letters, numerals, *_beyond_ascii(marks, blanks))


def _beyond_ascii(marks: bytes, blanks: int) -> tuple[int, ...]:
    first = marks.translate(None, _CONTINUED)
    counts = []
    for leads in _LEADS:
        without = first.translate(None, leads)
        counts.append(len(first) - len(without))
        first = without
    return (len(first), blanks, *counts, 0)


def measure_message(message: Message) -> Measure:
    parts = [measure(text) for text in _texts(message) if text]
    if len(parts) == 1:  # As most have; adding up would take as long as measuring.
        return (0, 1, *parts[0][2:-1], _pictures(message))
    return total([(0, max(1, len(parts)), 0, 0, 0, 0, 0, 0, 0, 0, _pictures(message)), *parts])


def _pictures(message: Message) -> int:
    return sum(bool(each.data) for each in message.pictures) if message.pictures else 0


def _texts(message: Message) -> list[str]:
    match message:
        case UserMessage():
            return [message.sender, message.sender_id, message.text]
        case AssistantMessage():
            calls = [f"{call.name} {json.dumps(call.input, ensure_ascii=False)}" for call in message.tool_calls]
            thoughts = [json.dumps(thought.shape, ensure_ascii=False) for thought in message.thoughts]
            return [message.text, *calls, *thoughts]
        case ToolMessage():
            return [outcome.output for outcome in message.outcomes]


def measure_tools(tools: Sequence[ToolSpec]) -> Measure:
    """Measure what a model is told of its tools."""
    texts = [f"{tool.name} {tool.description} {json.dumps(tool.schema, ensure_ascii=False)}" for tool in tools]
    return total([(0, len(texts), 0, 0, 0, 0, 0, 0, 0, 0, 0), *map(measure, texts)])


def total(measures: Iterable[Measure]) -> Measure:
    return tuple(map(sum, zip(*measures, strict=True)))


class Calibration:
    """What is known of one model's tokeniser. It begins with `weights`, and with each report knows better."""

    def __init__(self, weights: Sequence[float] = DEFAULT_WEIGHTS) -> None:
        self._prior = tuple(_within(weight, usual) for weight, usual in zip(weights, DEFAULT_WEIGHTS, strict=True))
        self._reports: deque[tuple[Measure, int]] = deque(maxlen=_KEPT)
        self.weights = self._prior
        self._ceiling: tuple[int, float] | None = None

    def estimate(self, measured: Measure) -> int:
        return round(_dot(measured, self.weights))

    def learn(self, measured: Measure, tokens: int) -> None:
        """Take in that a request of this measure had so many tokens of input."""
        expected = _dot(measured, self._prior)
        if expected <= 0 or not _CREDIBLE[0] < tokens / expected < _CREDIBLE[1]:
            return
        self._reports.append((measured, tokens))
        self.weights = self._fitted()

    @property
    def ceiling(self) -> int | None:
        """The estimate of a request that was too long for the model lately, whatever its settings say."""
        return self._ceiling[0] if self._ceiling and monotonic() < self._ceiling[1] else None

    def too_long(self, estimate: int) -> None:
        self._ceiling = (min(estimate, self.ceiling or estimate), monotonic() + _CEILING_HOLDS)

    def _fitted(self) -> tuple[float, ...]:
        """Return the weights that explain the reports best, and stay near to the prior where the reports are silent.

        First all weights are scaled alike, then each is moved: least squares of the relative errors, with a penalty.
        """
        faith = [_FADING**age for age in reversed(range(len(self._reports)))]
        ratios = [tokens / _dot(measured, self._prior) for measured, tokens in self._reports]
        scale = (_SCALE_DOUBT + _dot(faith, ratios)) / (_SCALE_DOUBT + sum(faith))
        base = [weight * scale for weight in self._prior]
        shares = [
            [amount * weight / tokens for amount, weight in zip(measured, base, strict=True)]
            for measured, tokens in self._reports
        ]
        moves = _least_squares(shares, [1 - sum(row) for row in shares], faith)
        moved = [weight * (1 + move) for weight, move in zip(base, moves, strict=True)]
        return tuple(_within(weight, usual) for weight, usual in zip(moved, DEFAULT_WEIGHTS, strict=True))


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return float(sum(map(mul, left, right)))


def _within(weight: float, usual: float) -> float:
    low, high = _LIMITS
    # The cost of a request and of a message is the provider's own wrapping, which may be anything.
    return min(max(weight, low * usual), high * usual * (10 if usual > 2.5 else 1))  # noqa: PLR2004 - those two only


def _least_squares(rows: list[list[float]], targets: list[float], faith: list[float]) -> list[float]:
    """Solve rows · x = targets, where each x stays near 0 within its leeway and each row is as good as its faith."""
    size = len(_LEEWAY)
    matrix = [[0.0] * size for _ in range(size)]
    right = [0.0] * size
    for row, target, trust in zip(rows, targets, faith, strict=True):
        for i, value in enumerate(row):
            if value:
                weighted = value * trust / _NOISE**2
                right[i] += weighted * target
                matrix[i] = [sum_ + weighted * other for sum_, other in zip(matrix[i], row, strict=True)]
    for i, leeway in enumerate(_LEEWAY):
        matrix[i][i] += leeway**-2
    return _solved(matrix, right)


def _solved(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gauss; the matrix is symmetric and positive, so no pivot has to be looked for."""
    size = len(right)
    for i in range(size):
        for j in range(i + 1, size):
            factor = matrix[j][i] / matrix[i][i]
            if factor:
                matrix[j] = [a - factor * b for a, b in zip(matrix[j], matrix[i], strict=True)]
                right[j] -= factor * right[i]
    solution = [0.0] * size
    for i in reversed(range(size)):
        known = sum(matrix[i][j] * solution[j] for j in range(i + 1, size))
        solution[i] = (right[i] - known) / matrix[i][i]
    return solution
