"""One thing that was looked at, and what to do about it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.dialogue import Json

__all__ = ["Finding", "Level", "as_json", "fine", "from_json", "odd", "wrong"]


class Level(StrEnum):
    FINE = "fine"
    ODD = "odd"
    """It works; a person should know all the same."""
    WRONG = "wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`about` is a word or a key of the configuration; `repair`, where there is one, loses nothing that is wanted."""

    about: str
    level: Level
    message: str
    fix: str = ""
    repair: Callable[[], None] | None = field(default=None, compare=False, repr=False)


def fine(about: str, message: str) -> Finding:
    return Finding(about=about, level=Level.FINE, message=message)


def odd(about: str, message: str, fix: str, repair: Callable[[], None] | None = None) -> Finding:
    return Finding(about=about, level=Level.ODD, message=message, fix=fix, repair=repair)


def wrong(about: str, message: str, fix: str, repair: Callable[[], None] | None = None) -> Finding:
    return Finding(about=about, level=Level.WRONG, message=message, fix=fix, repair=repair)


def as_json(finding: Finding) -> dict[str, Json]:
    told: dict[str, Json] = {"about": finding.about, "level": finding.level.value, "message": finding.message}
    return {**told, "fix": finding.fix, "can_be_mended": finding.repair is not None}


def from_json(told: Json) -> Finding:
    """Read what a daemon has told: one of another version, perhaps."""
    found = told if isinstance(told, dict) else {}
    level = str(found.get("level", ""))
    return Finding(
        about=str(found.get("about", "daemon")),
        level=Level(level) if level in set(Level) else Level.ODD,
        message=str(found.get("message", "The daemon has told something that cannot be understood.")),
        fix=str(found.get("fix", "")),
    )
