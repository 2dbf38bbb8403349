"""The last lines of the log in memory, so that owners can read them without access to the machine."""

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec import Struct

from config import LogLevel
from gateway.conversation import Json

MAX_LINES = 2_000
MAX_ERRORS = 500
"""Errors that stay after they have been displaced from the lines."""
MAX_LINE_CHARS = 16_000
"""A longer line, such as a deep traceback, is cut."""

LEVELS = tuple(LogLevel)
_NUMBER_OF = {level.value: number for number, level in enumerate(LEVELS)} | {"critical": len(LEVELS) - 1}
_ERROR = LEVELS.index(LogLevel.ERROR)
_HEAD = frozenset({"event", "level", "timestamp"})

_encode = msgspec.json.Encoder().encode


class LogLine(Struct, frozen=True, kw_only=True):
    """A line of the log. `fields` is the rest of it as JSON."""

    number: int
    """Counts all lines since the start, so that a reader knows where it was."""
    at: datetime
    level: LogLevel
    event: str
    fields: str


class RecentLog:
    """Takes lines from every thread. They have to be masked."""

    def __init__(self) -> None:
        self._lines: deque[LogLine] = deque(maxlen=MAX_LINES)
        self._errors: deque[LogLine] = deque(maxlen=MAX_ERRORS)
        self._lock = threading.Lock()
        self.last = 0
        """The number of the newest line."""

    def add(self, event: Mapping[str, Json]) -> None:
        level = _NUMBER_OF.get(str(event.get("level")), 0)
        fields = _encode({name: value for name, value in event.items() if name not in _HEAD}).decode()
        if len(fields) > MAX_LINE_CHARS:
            fields = _encode({"cut": fields[:MAX_LINE_CHARS]}).decode()
        with self._lock:
            self.last += 1
            line = LogLine(
                number=self.last,
                at=datetime.now(UTC),
                level=LEVELS[level],
                event=str(event.get("event", "")),
                fields=fields,
            )
            self._lines.append(line)
            if level >= _ERROR:
                self._errors.append(line)

    def lines(
        self, *, after: int = 0, before: int | None = None, level: LogLevel = LogLevel.DEBUG, text: str = ""
    ) -> Iterator[LogLine]:
        """Yield the lines between two numbers that have at least a level and contain a text, the newest first."""
        lowest, wanted = LEVELS.index(level), text.casefold()
        for line in self._newest_first(self._lines):
            if line.number <= after:
                return
            is_in_range = before is None or line.number < before
            if is_in_range and LEVELS.index(line.level) >= lowest and wanted in _searched(line):
                yield line

    def errors(self, *, within: timedelta) -> list[LogLine]:
        """Return the errors of the last time, the newest first. Only the last 500 are known."""
        since = datetime.now(UTC) - within
        return [line for line in self._newest_first(self._errors) if line.at >= since]

    def _newest_first(self, lines: deque[LogLine]) -> list[LogLine]:
        with self._lock:
            return list(reversed(lines))


def _searched(line: LogLine) -> str:
    return f"{line.event} {line.fields}".casefold()
