"""Installing the service, step by step: each says what it does, and does nothing where that is done already."""

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from config.files import write_atomically
from gateway.errors import Refused
from gateway.service_units import NETWORK, SERVICE, Place, Scope, shipped, shipped_file

__all__ = ["Step", "begin_configuration", "hidden_from_service", "installation", "removal", "systemctl"]

_READABLE = 0o644
_HIDDEN = {
    "/home": "ProtectHome",
    "/root": "ProtectHome",
    "/run/user": "ProtectHome",
    "/tmp": "PrivateTmp",  # noqa: S108 - nothing is put there.
    "/var/tmp": "PrivateTmp",  # noqa: S108 - as above.
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    says: str
    do: Callable[[], None]


def hidden_from_service(*paths: Path) -> str:
    """Say which of the programs the system's service could not see, and why; nothing when it sees them all."""
    for path in paths:
        for folder, wall in _HIDDEN.items():
            if path.resolve().is_relative_to(folder):
                return f"{path} lies in {folder}, which the service cannot see ({wall})"
    return ""


def installation(
    place: Place, command: Path, *, shell_network: bool = False, credentials: str = "", anew: bool = False
) -> Iterator[Step]:
    """Yield what is to be done, looking at each thing only when its turn comes. With `anew` it is restarted anyway."""
    wanted = shipped(place, command)
    if credentials:
        wanted[place.credentials] = credentials
    if shell_network and place.scope is Scope.SYSTEM:
        wanted[place.shell_network] = shipped_file(NETWORK)
    changed = {path: text for path, text in wanted.items() if _text(path) != text}
    for path, text in changed.items():
        kept = f", keeping the old one as {_old(path).name}" if path.exists() else ""
        yield Step(says=f"write {path}{kept}", do=partial(_put, path, text))
    if place.scope is Scope.SYSTEM and not place.config.exists():
        yield Step(says=f"write {place.config}", do=partial(begin_configuration, place))
    if changed:
        yield _manage(place.scope, "daemon-reload")
    yield _manage(place.scope, "enable", SERVICE)
    yield _manage(place.scope, "restart" if changed or anew else "start", SERVICE)


def begin_configuration(place: Place) -> None:
    """Write the configuration that the system's service starts with, unless it has one."""
    if not place.config.exists():
        _put(place.config, shipped_file("gatehouse.toml"))


def removal(place: Place) -> Iterator[Step]:
    """Yield what takes the service away again. Configuration and data stay."""
    if not place.unit.exists():
        return
    yield _manage(place.scope, "disable", "--now", SERVICE)
    for path in (place.shell_network, *place.files.values()):
        if path.exists():
            yield Step(says=f"remove {path}", do=partial(_remove, path))
    yield _manage(place.scope, "daemon-reload")


def systemctl(scope: Scope, *words: str) -> list[str]:
    return ["systemctl", *(("--user",) if scope is Scope.USER else ()), *words]


def _manage(scope: Scope, *words: str) -> Step:
    command = systemctl(scope, *words)
    return Step(says=" ".join(command), do=partial(_run, command))


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own words.
    except OSError as missing:
        raise Refused(
            f"`{command[0]}` cannot be run ({missing.strerror}); is this a machine with systemd?"
        ) from missing
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise Refused(f"`{' '.join(command)}` failed: {reason}")


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        _old(path).write_bytes(path.read_bytes())
    write_atomically(path, text.encode())
    path.chmod(_READABLE)


def _remove(path: Path) -> None:
    """Remove a unit or a drop-in; the folder of drop-ins goes with the last of them."""
    path.unlink()
    if path.parent.suffix == ".d" and not any(path.parent.iterdir()):
        path.parent.rmdir()


def _old(path: Path) -> Path:
    return path.with_name(f"{path.name}.old")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return ""
