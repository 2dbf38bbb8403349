"""Makes a conversation fit into a model's context window. Pure: messages and a budget in, messages out."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from gateway.conversation import Message, ToolMessage, UserMessage

Size = Callable[[Message], int]

_TURN_SHARE = 0.75
"""The share of the budget that the current turn may take before its old tool results are shortened."""
_BATCH = 4
"""How many old results are shortened together. Until the next batch, requests hit the provider's cache."""
_LONG_CUT, _SHORT_CUT = 600, 60
"""Characters that are left of a shortened result. The short cut is used if the long one is not enough."""


def fit(before: Sequence[Message], turn: Sequence[Message], *, size: Size, budget: int) -> list[Message]:
    """Return as much of both as fits into `budget` tokens.

    The turn keeps all its messages, but its oldest tool results are shortened if it takes too much of the budget.
    Of the messages before it, the oldest are left out, up to a user message, and the summary goes last. If even the
    shortened turn does not fit, it is returned without the messages before it.
    """
    if sum(map(size, turn)) + sum(map(size, before)) <= budget:
        return [*before, *turn]
    turn = _shorten_results(turn, size=size, budget=round(budget * _TURN_SHARE))
    summary = [message for message in before if isinstance(message, UserMessage) and message.is_ours]
    others = [message for message in before if not (isinstance(message, UserMessage) and message.is_ours)]
    left = budget - sum(map(size, turn)) - sum(map(size, summary))
    if left < 0:
        return [*turn]
    start = len(others)
    for at in range(len(others) - 1, -1, -1):
        left -= size(others[at])
        if left < 0:
            break
        if isinstance(others[at], UserMessage):
            start = at
    return [*summary, *others[start:], *turn]


def _shorten_results(turn: Sequence[Message], *, size: Size, budget: int) -> list[Message]:
    """Shorten tool results until the turn fits: the oldest first, and the newest only after all others."""
    messages = list(turn)
    results = [at for at, message in enumerate(messages) if isinstance(message, ToolMessage)]
    total = sum(map(size, messages))
    for group in (results[:-1], results[-1:]):
        # The old results of a group are shortened several at a time, the newer ones one by one.
        old, newer = group[:-_BATCH], group[-_BATCH:]
        batches = [*(old[first : first + _BATCH] for first in range(0, len(old), _BATCH)), *([at] for at in newer)]
        for width in (_LONG_CUT, _SHORT_CUT):
            for batch in batches:
                if total <= budget:
                    return messages
                for at in batch:
                    total -= size(messages[at])
                    messages[at] = _shortened(turn[at], width)
                    total += size(messages[at])
    return messages


def _shortened(message: Message, width: int) -> Message:
    if not isinstance(message, ToolMessage):
        return message
    outcomes = []
    for outcome in message.outcomes:
        if len(outcome.output) > 2 * width:
            note = f"[{len(outcome.output) - width:,} more characters were left out to save room.]"
            outcomes.append(replace(outcome, output=f"{outcome.output[:width]}\n{note}"))
        else:
            outcomes.append(outcome)
    return replace(message, outcomes=tuple(outcomes))
