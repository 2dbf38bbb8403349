"""The result of one check, and a suggested fix."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.conversation import Json


class Level(StrEnum):
    """The values are part of the output of `gatehouse doctor --json`."""

    OK = "fine"
    WARNING = "odd"
    """It works, but the operator should know."""
    ERROR = "wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`about` is a topic or a configuration key. `repair` fixes the problem without losing data."""

    about: str
    level: Level
    message: str
    fix: str = ""
    repair: Callable[[], None] | None = field(default=None, compare=False, repr=False)


def ok(about: str, message: str) -> Finding:
    return Finding(about=about, level=Level.OK, message=message)


def warning(about: str, message: str, fix: str, repair: Callable[[], None] | None = None) -> Finding:
    return Finding(about=about, level=Level.WARNING, message=message, fix=fix, repair=repair)


def error(about: str, message: str, fix: str, repair: Callable[[], None] | None = None) -> Finding:
    return Finding(about=about, level=Level.ERROR, message=message, fix=fix, repair=repair)


def as_json(finding: Finding) -> dict[str, Json]:
    return {
        "about": finding.about,
        "level": finding.level.value,
        "message": finding.message,
        "fix": finding.fix,
        "can_be_mended": finding.repair is not None,
    }


def from_json(value: Json) -> Finding:
    """Read a finding that a daemon has sent. The daemon may be of another version."""
    found = value if isinstance(value, dict) else {}
    level = str(found.get("level", ""))
    return Finding(
        about=str(found.get("about", "daemon")),
        level=Level(level) if level in set(Level) else Level.WARNING,
        message=str(found.get("message", "The gateway sent a finding that this version doesn't understand.")),
        fix=str(found.get("fix", "")),
    )
