"""Noticing that an agent goes in circles."""

from gateway.dialogue import Json, ToolCall, ToolOutcome

__all__ = ["Repeats"]

_LIMIT = 3


class Repeats:
    """Counts how often in a row the same call gave the same result."""

    def __init__(self) -> None:
        self.stuck_on: str | None = None
        """The tool that was called too often. It stays set, for the step's other calls still have to run."""
        self._last: tuple[str, dict[str, Json], str] | None = None
        self._count = 0

    def note(self, call: ToolCall, outcome: ToolOutcome) -> None:
        seen = (call.name, call.input, outcome.output)
        self._count = self._count + 1 if seen == self._last else 1
        self._last = seen
        if self._count >= _LIMIT:
            self.stuck_on = call.name
