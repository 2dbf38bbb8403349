"""The systemd units that are shipped, and the ones that are installed."""

import re
import shlex
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import gateway

__all__ = ["Place", "Scope", "place", "program_of", "same_unit", "shipped", "shipped_config", "shipped_drop_in"]


class Scope(StrEnum):
    """Whose service it is: the machine's, or one user's."""

    SYSTEM = "system"
    USER = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a service has its unit and its configuration."""

    scope: Scope
    unit: Path
    config: Path

    @property
    def drop_in(self) -> Path:
        """Where the rights for the sandbox of the shell are kept."""
        return self.unit.with_name(f"{self.unit.name}.d") / "sandbox.conf"


_FILES = {Scope.SYSTEM: "gatehouse.service", Scope.USER: "gatehouse-user.service"}
_COMMANDS = {Scope.SYSTEM: "/usr/local/bin/gatehouse", Scope.USER: "%h/.local/bin/gatehouse"}
_EXEC = re.compile(r"^ExecStart=.*$", re.MULTILINE)


def place(scope: Scope, home: Path, root: Path = Path("/")) -> Place:
    if scope is Scope.SYSTEM:
        unit, config = root / "etc/systemd/system/gatehouse.service", root / "etc/gatehouse/gatehouse.toml"
    else:
        unit, config = home / ".config/systemd/user/gatehouse.service", home / ".gatehouse/gatehouse.toml"
    return Place(scope=scope, unit=unit, config=config)


def shipped(scope: Scope, command: Path | None = None) -> str:
    """Return the unit as this version ships it, made to start `command`."""
    text = (_folder() / _FILES[scope]).read_text(encoding="utf-8")
    return text if command is None else text.replace(_COMMANDS[scope], _quoted(str(command)))


def shipped_config() -> str:
    """Return the configuration that the system's service starts with."""
    return (_folder() / "gatehouse.toml").read_text(encoding="utf-8")


def shipped_drop_in() -> str:
    """Return what the sandbox of the shell needs besides the unit."""
    return (_folder() / "sandbox.conf").read_text(encoding="utf-8")


def same_unit(one: str, other: str) -> bool:
    """Compare what two units say, whatever they start and however they are commented."""
    return _said(one) == _said(other)


def program_of(unit: str, home: Path) -> Path | None:
    """Return the program that a unit starts; None where it starts none."""
    found = _EXEC.findall(unit)
    try:
        words = shlex.split(found[-1].removeprefix("ExecStart=").replace("%h", str(home)).replace("%%", "%"))
    except (IndexError, ValueError):
        return None
    return Path(words[0].lstrip("-@:+!")) if words else None


def _said(unit: str) -> list[str]:
    lines = (line.strip() for line in _EXEC.sub("", unit).splitlines())
    return [line for line in lines if line and not line.startswith(("#", ";"))]


def _quoted(word: str) -> str:
    """Write a path as systemd reads it: `%` begins a specifier, and a space ends a word."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if re.search(r"[\s'\"\\;]", word) else escaped


def _folder() -> Path:
    """Find the units in an installed package, or in the tree that it is developed in."""
    package = Path(gateway.__file__).parent
    installed = package / "deploy/systemd"
    return installed if installed.is_dir() else package.parent / "deploy/systemd"
