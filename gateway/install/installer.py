"""Installs and removes the systemd service in described steps. Steps that are already done are left out."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from config.files import write_atomically
from gateway.errors import Refused
from gateway.install.units import NETWORK, SERVICE, ServicePaths, ServiceScope, shipped_file, shipped_units

_READABLE = 0o644
_HIDDEN = {
    "/home": "ProtectHome",
    "/root": "ProtectHome",
    "/run/user": "ProtectHome",
    "/tmp": "PrivateTmp",  # noqa: S108 - we create no file there.
    "/var/tmp": "PrivateTmp",  # noqa: S108 - as above.
}
"""Folders that the unit hides from the service, and the directive that does it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallStep:
    description: str
    run: Callable[[], None]


def find_hidden_program(*paths: Path) -> str:
    """Return which of the programs the system service could not see, and why. Empty if it sees all of them."""
    for path in paths:
        for folder, directive in _HIDDEN.items():
            if path.resolve().is_relative_to(folder):
                return f"{path} is in {folder}, which the service can't see ({directive})"
    return ""


def install_steps(
    paths: ServicePaths, command: Path, *, shell_network: bool = False, credentials: str = "", restart: bool = False
) -> Iterator[InstallStep]:
    """Yield the steps that install and start the service. With `restart`, it restarts even if no unit has changed."""
    wanted = {} if paths.is_packaged else shipped_units(paths, command)
    if credentials:
        wanted[paths.credentials] = credentials
    if shell_network and paths.scope is ServiceScope.SYSTEM:
        wanted[paths.shell_network] = shipped_file(NETWORK)
    changed = False
    for path, text in wanted.items():
        with suppress(FileNotFoundError, UnicodeDecodeError):
            if path.read_text(encoding="utf-8") == text:
                continue
        changed = True
        kept = f", keeping the old one as {_old(path).name}" if path.exists() else ""
        yield InstallStep(description=f"write {path}{kept}", run=partial(_write, path, text))
    if paths.scope is ServiceScope.SYSTEM and not paths.config.exists():
        yield InstallStep(description=f"write {paths.config}", run=partial(create_configuration, paths))
    if changed:
        yield _systemctl_step(paths.scope, "daemon-reload")
    yield _systemctl_step(paths.scope, "enable", SERVICE)
    # `start` does nothing if the service runs already.
    yield _systemctl_step(paths.scope, "restart" if changed or restart else "start", SERVICE)


def create_configuration(paths: ServicePaths) -> None:
    """Write the initial configuration of the system service, unless there is one."""
    if not paths.config.exists():
        _write(paths.config, shipped_file("gatehouse.toml"))


def removal_steps(paths: ServicePaths) -> Iterator[InstallStep]:
    """Yield the steps that stop and remove the service. Configuration and data stay."""
    if not paths.unit.exists():
        return
    yield _systemctl_step(paths.scope, "disable", "--now", SERVICE)
    for path in (paths.shell_network, *paths.files.values()):
        if path.exists():
            yield InstallStep(description=f"remove {path}", run=partial(_remove, path))
    yield _systemctl_step(paths.scope, "daemon-reload")


def systemctl_command(scope: ServiceScope, *words: str) -> list[str]:
    return ["systemctl", *(("--user",) if scope is ServiceScope.USER else ()), *words]


def _systemctl_step(scope: ServiceScope, *words: str) -> InstallStep:
    command = systemctl_command(scope, *words)

    def run() -> None:
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - fixed words.
        except OSError as error:
            raise Refused(f"Can't run `{command[0]}` ({error.strerror}). Does this machine use systemd?") from error
        if done.returncode:
            reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
            raise Refused(f"`{' '.join(command)}` failed: {reason}")

    return InstallStep(description=" ".join(command), run=run)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        _old(path).write_bytes(path.read_bytes())
    write_atomically(path, text.encode())
    path.chmod(_READABLE)


def _remove(path: Path) -> None:
    """Remove a unit or a drop-in. The last drop-in of a folder takes the folder with it."""
    path.unlink()
    if path.parent.suffix == ".d" and not any(path.parent.iterdir()):
        path.parent.rmdir()


def _old(path: Path) -> Path:
    return path.with_name(f"{path.name}.old")
