"""Noticing that an agent goes in circles."""

from collections import deque

from gateway.conversation import Json, ToolCall, ToolOutcome

__all__ = ["Repeats"]

_ROUNDS = 3
_LONGEST_CIRCLE = 3

_Seen = tuple[str, dict[str, Json], str]


class Repeats:
    """Looks for the same few calls, with the same results, over and over: one call, or up to three in turns."""

    def __init__(self) -> None:
        self.stuck_on: tuple[str, ...] = ()
        """The tools of the circle. They stay set, for the step's other calls still have to run."""
        self._seen: deque[_Seen] = deque(maxlen=_ROUNDS * _LONGEST_CIRCLE)

    def note(self, call: ToolCall, outcome: ToolOutcome) -> None:
        self._seen.append((call.name, call.input, outcome.output))
        if not self.stuck_on:
            self.stuck_on = _circle(list(self._seen))


def _circle(seen: list[_Seen]) -> tuple[str, ...]:
    """Name the tools of the shortest circle that the last calls went round often enough, each once."""
    for length in range(1, _LONGEST_CIRCLE + 1):
        last = seen[-_ROUNDS * length :]
        if len(last) == _ROUNDS * length and last == last[-length:] * _ROUNDS:
            return tuple(dict.fromkeys(name for name, _, _ in last))
    return ()
