"""Logging: one event a line, for people on a terminal and as JSON elsewhere, with every known secret blotted out."""

import io
import json
import logging
import math
import os
import re
import select
import threading
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import TextIO
from urllib.parse import quote

import msgspec
import structlog
from pydantic import BaseModel
from structlog.typing import EventDict, Processor, WrappedLogger

from config import AccountSettings, LogFormat, LogLevel, Secret
from gateway.conversation import Json
from gateway.observability.log_file import LogFile

PATIENCE = 0.2
"""How long one line waits for a reader that does not keep up. After that, none does until there is room again."""


class Outlet:
    """What structlog calls a logger.

    A full disk, a pipe whose reader has left or sleeps, a stream that was closed: the line is lost. When writing works
    again, one event tells how many were. `None` stands for an output that the process was started without.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._has_descriptor = stream is not None and _has_descriptor(stream)
        self._lock = threading.Lock()
        self._lost = 0
        self._is_torn = False

    def msg(self, line: str) -> None:
        with self._lock:
            try:
                self._write(f"{line}\n")
            except (OSError, ValueError):  # Python's word for a closed stream is ValueError.
                self._lost += 1
                return
            lost, self._lost = self._lost, 0
        if lost:
            structlog.get_logger().warning("log_lines_lost", count=lost)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg

    def _write(self, line: str) -> None:
        if self._stream is None:
            return
        if self._has_descriptor:
            # Past Python's buffer, which would keep what it could not write and try again when the process exits.
            self._write_bytes(self._stream.fileno(), line.encode(self._stream.encoding or "utf-8", "replace"))
        else:
            self._stream.write(line)
            self._stream.flush()

    def _write_bytes(self, descriptor: int, line: bytes) -> None:
        """Write piece by piece: a pipe that is ready takes as much as PIPE_BUF without blocking."""
        rest = memoryview(b"\n" + line if self._is_torn else line)
        patience = 0.0 if self._lost else PATIENCE
        while rest:
            _wait(descriptor, patience)
            written = os.write(descriptor, rest[: select.PIPE_BUF])
            rest = rest[written:]
            self._is_torn = bool(rest)


def _has_descriptor(stream: TextIO) -> bool:
    try:
        stream.fileno()
    except io.UnsupportedOperation:
        return False
    return True


def _wait(descriptor: int, patience: float) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    if not poll.poll(patience * 1000):
        raise TimeoutError


SHORTEST_SECRET = 6
"""Shorter values hide nothing from anybody, and blotting them would leave holes in half of the words."""
SHORTEST_OPTION = 8
"""A channel's options may hold secrets that are not marked as such; shorter texts are words like `polling`."""
REPEATS_AFTER = 1.0
"""Seconds after which a library is heard again that says the same; out of files, one says so without end."""
MOST_REMEMBERED = 100


def configure(
    level: LogLevel, layout: LogFormat, secrets: Iterable[Secret], stream: TextIO | None, file: LogFile | None = None
) -> None:
    """Set up structlog, and route what libraries log through it. There may be no stream, as after `>&-` in a shell.

    What goes to the stream goes to the `file` too, there always as JSON.

    May be called again when the settings change; what was a secret before is still blotted out.
    """
    threshold = logging.getLevelNamesMapping()[level.upper()]
    is_terminal = stream is not None and stream.isatty()
    for_people = layout is LogFormat.CONSOLE or (layout is LogFormat.AUTO and is_terminal)
    renderer: Processor = structlog.dev.ConsoleRenderer(colors=is_terminal) if for_people else _as_json
    blotter = _Blotter()
    blotter.hide(value for known in _blotters() for value in known.values)
    blotter.hide(secret.reveal() for secret in secrets)
    outlet = Outlet(stream)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S" if for_people else "iso", utc=not for_people),
            structlog.processors.format_exc_info,
            blotter,
            *([partial(_copy, file)] if file is not None else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=lambda *_: outlet,
    )
    root = logging.getLogger()
    root.handlers = [_Forward()]
    root.setLevel(max(threshold, logging.WARNING))  # Libraries tell their lives at info; ours is enough.


def also_hide(secret: Secret) -> None:
    """Blot out a secret that is in no settings, from now on; it outlives a `configure`."""
    for blotter in _blotters():
        blotter.hide([secret.reveal()])


def secrets_in(settings: object) -> Iterator[Secret]:
    """Find every secret, wherever in the settings it stands, and every text in a channel's options that may be one."""
    match settings:
        case Secret():
            yield settings
        case AccountSettings():
            yield from secrets_in(dict(settings))
            yield from _suspects(settings.options)
        case BaseModel():
            yield from secrets_in(dict(settings))
        case dict():
            for value in settings.values():
                yield from secrets_in(value)
        case list() | tuple():
            for value in settings:
                yield from secrets_in(value)


def _suspects(option: object) -> Iterator[Secret]:
    match option:
        case str() if len(option) >= SHORTEST_OPTION:
            yield Secret(option)
        case dict():
            for value in option.values():
                yield from _suspects(value)
        case list():
            for value in option:
                yield from _suspects(value)


def _copy(file: LogFile, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    file.write(msgspec.json.encode({**event, "timestamp": now}).decode())
    return event


def _as_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    return msgspec.json.encode(event).decode()


def _blotters() -> list["_Blotter"]:
    """Return the one in force; there is none before `configure`."""
    return [processor for processor in structlog.get_config()["processors"] if isinstance(processor, _Blotter)]


class _Blotter:
    """Makes a plain value of each event, without secrets (a token in a URL in an exception), before it is encoded."""

    def __init__(self) -> None:
        self.values: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None

    def hide(self, values: Iterable[str]) -> None:
        self.values |= {value for value in values if len(value) >= SHORTEST_SECRET}
        forms = {form for value in self.values for form in _forms(value)}
        # The longest first, so that of two secrets, one of which begins like the other, neither shows its end.
        alternatives = "|".join(map(re.escape, sorted(forms, key=len, reverse=True)))
        self._pattern = re.compile(alternatives) if forms else None

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {name: self._plain(value) for name, value in event.items()}

    def _plain(self, value: object) -> Json:
        match value:
            case None | bool() | int() | float():
                return value
            case dict():
                return {self._text(str(name)): self._plain(inner) for name, inner in value.items()}
            case list() | tuple() | set() | frozenset():
                return [self._plain(inner) for inner in value]
            case _:
                return self._text(str(value))

    def _text(self, text: str) -> str:
        text = _encodable(text)
        return self._pattern.sub("***", text) if self._pattern else text


def _forms(value: str) -> set[str]:
    """Return how a value may be spelt: as it is, in a URL, and escaped as in a `repr` or in JSON."""
    return {_encodable(value), quote(value, safe="", errors="replace"), repr(value)[1:-1], json.dumps(value)[1:-1]}


def _encodable(text: str) -> str:
    """Replace lone surrogates, which no JSON can carry."""
    return text if text.isascii() else text.encode(errors="replace").decode()


_Said = tuple[str, str, str]
"""A library, what it says, and of which failure: the same words may stand over another one."""


def _failure(record: logging.LogRecord) -> str:
    return "".join(traceback.format_exception_only(record.exc_info[1])) if record.exc_info else ""


class _Forward(logging.Handler):
    """Hands the records of the standard library's logging to structlog; what is said again and again, once a second."""

    def __init__(self) -> None:
        super().__init__()
        self._told_at: dict[_Said, float] = {}
        self._untold: Counter[_Said] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger()
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001 - a library's slip in a log call must not become its failure.
            message = str(record.msg)
        said = (record.name, message, _failure(record))
        if 0 <= record.created - self._told_at.get(said, -math.inf) < REPEATS_AFTER:
            self._untold[said] += 1
            return
        self._remember(said, record.created)
        again = {"repeats": self._untold.pop(said)} if said in self._untold else {}
        log.log(
            record.levelno, "library_logged", library=record.name, message=message, **again, exc_info=record.exc_info
        )

    def _remember(self, said: _Said, at: float) -> None:
        if len(self._told_at) >= MOST_REMEMBERED:
            self._told_at.clear()
            self._untold.clear()
        self._told_at[said] = at
