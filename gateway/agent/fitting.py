"""Making a conversation fit into a model's context. Pure: messages and a budget in, messages out."""

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from gateway.dialogue import Message, ToolMessage, ToolOutcome, UserMessage

__all__ = ["fit"]

Size = Callable[[Message], int]

_SHARE_OF_THE_TURN = 0.75
"""How much of the budget the current turn may take before its old tool results are shortened."""
_STRIDE = 4
"""Results are shortened by so many messages at a time: a request that starts like the last one is cheaper."""
_LONG_LEFT, _SHORT_LEFT = 600, 60
"""Characters that are left of a shortened result; the fewer where even the first is not enough."""


def fit(before: Sequence[Message], turn: Sequence[Message], *, size: Size, budget: int) -> list[Message]:
    """Return both, as much of them as fits into `budget` tokens.

    The turn stays whole, but the oldest of its tool results are shortened where it alone would fill the budget. Of
    what was said before it the oldest goes, from a user's message to the next, and the summary last. When even the
    shortened turn does not fit, it is returned all the same.
    """
    turn_size = sum(map(size, turn))
    if turn_size + sum(map(size, before)) <= budget:
        return [*before, *turn]
    turn = _shortened(turn, size=size, budget=round(budget * _SHARE_OF_THE_TURN))
    return [*_newest(before, size=size, budget=budget - sum(map(size, turn))), *turn]


def _newest(before: Sequence[Message], *, size: Size, budget: int) -> list[Message]:
    """Return the end of `before` that fits, from a user's message on, behind the summary if there is one."""
    summary = [message for message in before if isinstance(message, UserMessage) and message.is_ours]
    said = [message for message in before if not (isinstance(message, UserMessage) and message.is_ours)]
    left = budget - sum(map(size, summary))
    if left < 0:
        return []
    start = len(said)
    for at in range(len(said) - 1, -1, -1):
        left -= size(said[at])
        if left < 0:
            break
        if isinstance(said[at], UserMessage):
            start = at
    return [*summary, *said[start:]]


def _shortened(turn: Sequence[Message], *, size: Size, budget: int) -> list[Message]:
    """Shorten tool results from the oldest on until the turn fits, first to a paragraph, then to a line."""
    messages = list(turn)
    results = [at for at, message in enumerate(messages) if isinstance(message, ToolMessage)]
    total = sum(map(size, messages))
    for width, together in _in_order(results):
        if total <= budget:
            break
        for at in together:
            total -= size(messages[at])
            messages[at] = _cut(turn[at], width)
            total += size(messages[at])
    return messages


def _in_order(results: list[int]) -> Iterator[tuple[int, list[int]]]:
    """Say which results are to be shortened to what: all others before the newest."""
    older, newest = results[:-1], results[-1:]
    for group in (older, newest):
        for width in (_LONG_LEFT, _SHORT_LEFT):
            yield from ((width, together) for together in _by_age(group))


def _by_age(results: list[int]) -> list[list[int]]:
    """Put the old ones together, and let each of the newer stand alone."""
    old, newer = results[:-_STRIDE], results[-_STRIDE:]
    return [*(old[first : first + _STRIDE] for first in range(0, len(old), _STRIDE)), *([each] for each in newer)]


def _cut(message: Message, width: int) -> Message:
    if not isinstance(message, ToolMessage):
        return message
    return replace(message, outcomes=tuple(_cut_outcome(outcome, width) for outcome in message.outcomes))


def _cut_outcome(outcome: ToolOutcome, width: int) -> ToolOutcome:
    if len(outcome.output) <= 2 * width:
        return outcome
    cut = len(outcome.output) - width
    return replace(outcome, output=f"{outcome.output[:width]}\n[{cut:,} more characters were left out to save room.]")
