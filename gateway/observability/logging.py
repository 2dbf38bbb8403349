"""Logging setup: console output on a terminal, JSON elsewhere, with every known secret masked."""

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
from contextlib import suppress
from datetime import UTC, datetime
from typing import TextIO
from urllib.parse import quote

import msgspec
import structlog
from pydantic import BaseModel
from structlog.typing import EventDict, WrappedLogger

from config import AccountSettings, LogFormat, LogLevel, Secret
from gateway.conversation import Json
from gateway.observability.log_file import LogFile
from gateway.observability.recent_log import RecentLog

WRITE_TIMEOUT = 0.2
"""Seconds that a line waits for a slow reader. Once one was lost, lines do not wait until writing works again."""
MIN_SECRET_LENGTH = 6
"""Masking shorter values would leave holes in ordinary words."""
MIN_OPTION_LENGTH = 8
"""A channel's options may hold unmarked secrets. Shorter texts are words such as `polling`."""
REPEAT_INTERVAL = 10.0
"""Seconds before the same message of a library is logged again. Without file descriptors, one repeats endlessly."""
MAX_LIBRARY_LINES = 20
"""Messages of libraries that are logged within `REPEAT_INTERVAL`. The rest is counted."""
MAX_REMEMBERED_MESSAGES = 100


class LogWriter:
    """The logger that structlog calls. It never blocks for long and never raises.

    A line is lost if the disk is full, the reader of a pipe is gone or stalled, or the stream is closed. The first line
    that can be written again is followed by an event with the number of lost lines. The stream is None if the process
    was started without one (`>&-` in a shell).
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._descriptor: int | None = None
        self._lock = threading.Lock()
        self._lost = 0
        self._is_torn = False
        """Only a part of the last line was written."""
        if stream is not None:
            with suppress(io.UnsupportedOperation):
                self._descriptor = stream.fileno()

    def msg(self, line: str) -> None:
        with self._lock:
            try:
                if self._stream is not None:
                    self._write(self._stream, f"{line}\n")
            except (OSError, ValueError):  # A closed stream raises ValueError.
                self._lost += 1
                return
            lost, self._lost = self._lost, 0
        if lost:
            structlog.get_logger().warning("log_lines_lost", count=lost)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg

    def _write(self, stream: TextIO, line: str) -> None:
        if self._descriptor is None:
            stream.write(line)
            stream.flush()
            return
        # Bypass Python's buffer: it would keep an unwritten line and block on it when the process exits.
        descriptor = stream.fileno()  # Asked again, since it raises once the stream is closed.
        encoded = line.encode(stream.encoding or "utf-8", "replace")
        rest = memoryview(b"\n" + encoded if self._is_torn else encoded)
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        while rest:
            if not poll.poll(0.0 if self._lost else WRITE_TIMEOUT * 1000):
                raise TimeoutError
            # A pipe that is ready takes PIPE_BUF bytes without blocking, but not more.
            rest = rest[os.write(descriptor, rest[: select.PIPE_BUF]) :]
            self._is_torn = bool(rest)


def configure(
    level: LogLevel,
    layout: LogFormat,
    secrets: Iterable[Secret],
    stream: TextIO | None,
    file: LogFile | None = None,
    recent: RecentLog | None = None,
) -> None:
    """Set up structlog, and route the logs of libraries through it.

    Every event also goes to `file`, always as JSON, and to `recent`. Call this again when the settings change; secrets
    of the old settings stay masked.
    """
    threshold = logging.getLevelNamesMapping()[level.upper()]
    is_terminal = stream is not None and stream.isatty()
    is_console = layout is LogFormat.CONSOLE or (layout is LogFormat.AUTO and is_terminal)
    mask = SecretMask()
    for old in _active_masks():
        mask.add(old.values)
    mask.add(secret.reveal() for secret in secrets)

    def copy_elsewhere(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        if file is not None:
            now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
            file.write(encode_json({**event, "timestamp": now}))
        if recent is not None:
            recent.add(event)
        return event

    def render_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
        return encode_json(event)

    writer = LogWriter(stream)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S" if is_console else "iso", utc=not is_console),
            structlog.processors.format_exc_info,
            mask,
            copy_elsewhere,
            *([escape_for_console, structlog.dev.ConsoleRenderer(colors=is_terminal)] if is_console else [render_json]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=lambda *_: writer,
    )
    root = logging.getLogger()
    root.handlers = [LibraryHandler()]
    root.setLevel(max(threshold, logging.WARNING))  # Libraries log too much at info.


# Characters that a terminal obeys, or that make a text read in another order: C0, DEL, C1, separators of lines and
# paragraphs, and bidi controls. Names and errors come from outside, so they may contain all of them.
_BEYOND_ASCII = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_IN_JSON = re.compile(f"[{_BEYOND_ASCII}]")
_IN_CONSOLE = re.compile(f"[\x00-\x08\x0b-\x1f{_BEYOND_ASCII}]")


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def encode_json(event: EventDict) -> str:
    """Return an event as JSON that is safe to show. A JSON parser restores every character."""
    return _IN_JSON.sub(_escape, msgspec.json.encode(event).decode())


def escape_for_console(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    return {name: _IN_CONSOLE.sub(_escape, value) if isinstance(value, str) else value for name, value in event.items()}


def also_hide(secret: Secret) -> None:
    """Mask a secret that is not in the settings, from now on and after the next `configure`."""
    for mask in _active_masks():
        mask.add([secret.reveal()])


def secrets_in(settings: object) -> Iterator[Secret]:
    """Find every secret in the settings, and every text in a channel's options that may be one."""
    match settings:
        case Secret():
            yield settings
        case AccountSettings():
            yield from secrets_in(dict(settings))
            yield from _possible_secrets(settings.options)
        case BaseModel():
            yield from secrets_in(dict(settings))
        case dict():
            for value in settings.values():
                yield from secrets_in(value)
        case list() | tuple():
            for value in settings:
                yield from secrets_in(value)


def _possible_secrets(option: object) -> Iterator[Secret]:
    match option:
        case str() if len(option) >= MIN_OPTION_LENGTH:
            yield Secret(option)
        case dict():
            for value in option.values():
                yield from _possible_secrets(value)
        case list():
            for value in option:
                yield from _possible_secrets(value)


def _active_masks() -> list["SecretMask"]:
    """Return the mask of the current configuration. The list is empty before `configure`."""
    return [processor for processor in structlog.get_config()["processors"] if isinstance(processor, SecretMask)]


class SecretMask:
    """A processor that turns each event into plain JSON values and masks the secrets in them.

    It runs before the event is encoded, so that a token in the URL of an exception is masked too.
    """

    def __init__(self) -> None:
        self.values: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None

    def add(self, values: Iterable[str]) -> None:
        self.values |= {value for value in values if len(value) >= MIN_SECRET_LENGTH}
        # A secret may appear as it is, in a URL, and escaped as in a `repr` or in JSON.
        spellings = {
            spelling
            for value in self.values
            for spelling in (
                _encodable(value),
                quote(value, safe="", errors="replace"),
                repr(value)[1:-1],
                json.dumps(value)[1:-1],
            )
        }
        # The longest first: if one secret starts with another, the end of the longer one must not show.
        alternatives = "|".join(map(re.escape, sorted(spellings, key=len, reverse=True)))
        self._pattern = re.compile(alternatives) if spellings else None

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        # Most values are texts and numbers, and each message is logged.
        return {
            name: self._mask_text(value) if type(value) is str else self._mask(value) for name, value in event.items()
        }

    def _mask(self, value: object) -> Json:
        match value:
            case None | bool() | int() | float():
                return value
            case dict():
                return {self._mask_text(str(name)): self._mask(inner) for name, inner in value.items()}
            case list() | tuple() | set() | frozenset():
                return [self._mask(inner) for inner in value]
            case _:
                return self._mask_text(str(value))

    def _mask_text(self, text: str) -> str:
        if not text.isascii():
            text = _encodable(text)
        return self._pattern.sub("***", text) if self._pattern else text


def _encodable(text: str) -> str:
    """Replace lone surrogates, which JSON cannot carry."""
    return text.encode(errors="replace").decode()


# Messages of asyncio contain addresses, times and descriptors, which differ each time.
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?")


class LibraryHandler(logging.Handler):
    """Forwards records of the standard library's logging to structlog, within a rate limit.

    Messages that differ only in their numbers are the same message.
    """

    def __init__(self) -> None:
        super().__init__()
        self._logged_at: dict[tuple[str, str, str], float] = {}
        self._suppressed: Counter[tuple[str, str, str]] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001 - a library's wrong log call must not become its failure.
            message = str(record.msg)
        # The same message with another exception is a different one.
        error = "".join(traceback.format_exception_only(record.exc_info[1])) if record.exc_info else ""
        key = (record.name, _NUMBER.sub("#", message), _NUMBER.sub("#", error))
        # The wall clock may jump back, so a negative age does not count as a repeat.
        recent = [at for at in self._logged_at.values() if 0 <= record.created - at < REPEAT_INTERVAL]
        is_repeated = 0 <= record.created - self._logged_at.get(key, -math.inf) < REPEAT_INTERVAL
        if is_repeated or len(recent) >= MAX_LIBRARY_LINES:
            self._suppressed[key if is_repeated else _OTHERS] += 1
            return
        if len(self._logged_at) >= MAX_REMEMBERED_MESSAGES:
            self._logged_at.clear()
            self._suppressed.clear()
        self._logged_at[key] = record.created
        counts = {"repeats": self._suppressed.pop(key, 0), "suppressed": self._suppressed.pop(_OTHERS, 0)}
        structlog.get_logger().log(
            record.levelno,
            "library_logged",
            library=record.name,
            message=message,
            **{name: count for name, count in counts.items() if count},
            exc_info=record.exc_info,
        )


_OTHERS = ("", "", "")
"""Counts the messages of all libraries that were over the limit."""
