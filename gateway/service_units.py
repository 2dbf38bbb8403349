"""The systemd units that are shipped, and the ones that are installed."""

import re
import shlex
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import gateway

__all__ = ["NETWORK", "SERVICE", "Place", "Scope", "place", "program_of", "same_unit", "shipped", "shipped_file"]


class Scope(StrEnum):
    """Whose service it is: the machine's, or one user's."""

    SYSTEM = "system"
    USER = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a service has its units and its configuration."""

    scope: Scope
    units: Path
    config: Path

    @property
    def unit(self) -> Path:
        """The unit of the gateway itself."""
        return self.units / SERVICE

    @property
    def files(self) -> dict[str, Path]:
        """All units, by the name under which they are shipped."""
        return {name: self.units / installed for name, installed in _FILES[self.scope].items()}

    @property
    def credentials(self) -> Path:
        """Where it is said which secrets systemd hands to the gateway."""
        return self.units / f"{SERVICE}.d" / "credentials.conf"

    @property
    def shell_network(self) -> Path:
        """Where it is said that commands of the shell may reach the network."""
        return self.units / "gatehouse-sandbox.service.d" / NETWORK


SERVICE = "gatehouse.service"
NETWORK = "sandbox-network.conf"
_FILES = {
    Scope.SYSTEM: {
        SERVICE: SERVICE,
        "gatehouse-sandbox.socket": "gatehouse-sandbox.socket",
        "gatehouse-sandbox.service": "gatehouse-sandbox.service",
    },
    Scope.USER: {"gatehouse-user.service": SERVICE},
}
_COMMANDS = {Scope.SYSTEM: "/usr/local/bin/gatehouse", Scope.USER: "%h/.local/bin/gatehouse"}
_EXEC = re.compile(r"^ExecStart=.*$", re.MULTILINE)


def place(scope: Scope, home: Path, root: Path = Path("/")) -> Place:
    if scope is Scope.SYSTEM:
        units, config = root / "etc/systemd/system", root / "etc/gatehouse/gatehouse.toml"
    else:
        units, config = home / ".config/systemd/user", home / ".gatehouse/gatehouse.toml"
    return Place(scope=scope, units=units, config=config)


def shipped(where: Place, command: Path | None = None) -> dict[Path, str]:
    """Return the units as this version ships them, made to start `command`, by where they belong."""
    return {path: _started_by(command, where.scope, shipped_file(name)) for name, path in where.files.items()}


def shipped_file(name: str) -> str:
    return (_folder() / name).read_text(encoding="utf-8")


def _started_by(command: Path | None, scope: Scope, unit: str) -> str:
    return unit if command is None else unit.replace(_COMMANDS[scope], _quoted(str(command)))


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
