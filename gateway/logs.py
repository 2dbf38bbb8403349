"""Logging: one event a line, for people on a terminal and as JSON elsewhere, with every known secret blotted out."""

import logging
import sys
from collections.abc import Iterable, Iterator
from typing import TextIO

import msgspec
import structlog
from pydantic import BaseModel
from structlog.typing import EventDict, Processor, WrappedLogger

from config import LogFormat, LogLevel, Secret

__all__ = ["configure", "secrets_in"]


def configure(level: LogLevel, layout: LogFormat, secrets: Iterable[Secret], stream: TextIO = sys.stdout) -> None:
    """Set up structlog, and route what libraries log through it. May be called again when the settings change."""
    threshold = logging.getLevelNamesMapping()[level.upper()]
    for_people = layout is LogFormat.CONSOLE or (layout is LogFormat.AUTO and stream.isatty())
    renderer: Processor = structlog.dev.ConsoleRenderer(colors=stream.isatty()) if for_people else _as_json
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S" if for_people else "iso", utc=not for_people),
            *([] if for_people else [structlog.processors.format_exc_info]),
            renderer,
            _Blotter(secrets),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(stream),
    )
    root = logging.getLogger()
    root.handlers = [_Forward()]
    root.setLevel(max(threshold, logging.WARNING))  # Libraries tell their lives at info; ours is enough.


def secrets_in(settings: object) -> Iterator[Secret]:
    """Find every secret, wherever in the settings it stands."""
    match settings:
        case Secret():
            yield settings
        case BaseModel():
            yield from secrets_in(dict(settings))
        case dict():
            for value in settings.values():
                yield from secrets_in(value)
        case list() | tuple():
            for value in settings:
                yield from secrets_in(value)


def _as_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode()


class _Blotter:
    """The last processor: whatever slipped into a line (a token in a URL in an exception), the value does not leave."""

    def __init__(self, secrets: Iterable[Secret]) -> None:
        self._values = [secret.reveal() for secret in secrets]

    def __call__(self, _logger: WrappedLogger, _method: str, line: EventDict | str) -> str:
        text = str(line)
        for value in self._values:
            text = text.replace(value, "***")
        return text


class _Forward(logging.Handler):
    """Hands the records of the standard library's logging to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger()
        message = record.getMessage()
        log.log(record.levelno, "library_logged", library=record.name, message=message, exc_info=record.exc_info)
