"""The systemd units: as this version ships them, and where they are installed."""

import re
import shlex
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import gateway

SERVICE = "gatehouse.service"
NETWORK = "sandbox-network.conf"
"""A drop-in that gives commands of the shell access to the network."""


class ServiceScope(StrEnum):
    """A service belongs to the whole machine or to one user."""

    SYSTEM = "system"
    USER = "user"


_UNITS = {
    ServiceScope.SYSTEM: {
        SERVICE: SERVICE,
        "gatehouse-sandbox.socket": "gatehouse-sandbox.socket",
        "gatehouse-sandbox.service": "gatehouse-sandbox.service",
    },
    ServiceScope.USER: {"gatehouse-user.service": SERVICE},
}
"""The installed names of the units, by their shipped names."""
_COMMANDS = {ServiceScope.SYSTEM: "/usr/local/bin/gatehouse", ServiceScope.USER: "%h/.local/bin/gatehouse"}
"""The program that the shipped units start."""
_EXEC = re.compile(r"^ExecStart=.*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePaths:
    """The paths of a service's units and configuration. `is_packaged`: the units belong to the Debian package."""

    scope: ServiceScope
    units: Path
    drop_ins: Path
    config: Path
    is_packaged: bool

    @property
    def unit(self) -> Path:
        """The unit of the gateway itself."""
        return self.units / SERVICE

    @property
    def files(self) -> dict[str, Path]:
        """All units, by their shipped names."""
        return {name: self.units / installed for name, installed in _UNITS[self.scope].items()}

    @property
    def credentials(self) -> Path:
        """The drop-in that lists the secrets which systemd passes to the gateway."""
        return self.drop_ins / f"{SERVICE}.d" / "credentials.conf"

    @property
    def shell_network(self) -> Path:
        """The drop-in that gives commands of the shell access to the network."""
        return self.drop_ins / "gatehouse-sandbox.service.d" / NETWORK


def service_paths(scope: ServiceScope, home: Path, root: Path = Path("/")) -> ServicePaths:
    if scope is ServiceScope.SYSTEM:
        units, config = root / "etc/systemd/system", root / "etc/gatehouse/gatehouse.toml"
    else:
        units, config = home / ".config/systemd/user", home / ".gatehouse/gatehouse.toml"
    packaged = root / "usr/lib/systemd/system"
    is_packaged = scope is ServiceScope.SYSTEM and (packaged / SERVICE).exists() and not (units / SERVICE).exists()
    return ServicePaths(
        scope=scope,
        units=packaged if is_packaged else units,
        drop_ins=units,
        config=config,
        is_packaged=is_packaged,
    )


def shipped_units(paths: ServicePaths, command: Path | None = None) -> dict[Path, str]:
    """Return the text of the units that this version ships, by installed path. They start `command` if it is given."""
    units = {path: shipped_file(name) for name, path in paths.files.items()}
    if command is None:
        return units
    # systemd expands `%` and `$`, and splits at spaces unless the word is quoted.
    escaped = str(command).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    word = f'"{escaped}"' if re.search(r"[\s'\"\\;]", str(command)) else escaped
    return {path: text.replace(_COMMANDS[paths.scope], word) for path, text in units.items()}


def shipped_file(name: str) -> str:
    """Read a file of `deploy/systemd`, which is part of the installed package or of the source tree."""
    package = Path(gateway.__file__).parent
    installed = package / "deploy/systemd"
    folder = installed if installed.is_dir() else package.parent / "deploy/systemd"
    return (folder / name).read_text(encoding="utf-8")


def same_unit(one: str, other: str) -> bool:
    """Compare two units, without the program they start and without comments."""
    return _directives(one) == _directives(other)


def _directives(unit: str) -> list[str]:
    lines = (line.strip() for line in _EXEC.sub("", unit).splitlines())
    return [line for line in lines if line and not line.startswith(("#", ";"))]


def program_of(unit: str, home: Path) -> Path | None:
    """Return the program that a unit starts; None if it starts no program."""
    found = _EXEC.findall(unit)
    try:
        words = shlex.split(found[-1].removeprefix("ExecStart=").replace("%h", str(home)).replace("%%", "%"))
    except (IndexError, ValueError):
        return None
    return Path(words[0].lstrip("-@:+!")) if words else None  # Without systemd's prefixes (systemd.service(5)).
