"""Checks of the installation: startup errors, the HTTP port, file permissions and the installed service. They block."""

import errno
import os
import socket
import stat
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from config import HttpSettings, Settings
from gateway.adapters.registry import ChannelRegistry
from gateway.contract import Address, Channel, CommandInfo, Line, OpenQuestion, Sender, SessionInfo
from gateway.doctor.finding import Finding, error, ok, warning
from gateway.errors import GatehouseError
from gateway.install.units import ServiceScope, program_of, same_unit, service_paths, shipped_units
from gateway.text.plain import count
from gateway.turns.agents import agent_faults

_OTHERS = 0o077
_UNCHECKED = ("workspace",)
"""Agents choose the permissions of their own files. The folder above is private."""
_NAMED_FILES = 3


class NoSessions:
    """An empty session browser, for channels that are opened but never run."""

    def sessions(self, _address: Address, _sender: Sender, _guild: str | None = None) -> list[SessionInfo]:
        return []

    async def history(self, _address: Address, _sender: Sender, *, limit: int) -> list[Line]:
        return [][:limit]

    def questions(self, _address: Address, _sender: Sender) -> list[OpenQuestion]:
        return []

    def commands(self) -> list[CommandInfo]:
        return []


def open_channels(settings: Settings) -> Mapping[tuple[str, str], Channel]:
    """Open all enabled channels without running them. By their contract, that does no I/O."""
    channels = ChannelRegistry(NoSessions())
    channels.open(settings)
    return channels.by_identity


def find_startup_errors(settings: Settings) -> tuple[list[str], dict[tuple[str, str], Channel]]:
    """Return everything that would prevent the gateway from starting, and the channels that can be opened.

    Starts no channel, writes no file and calls no peer.
    """
    errors = [*agent_faults(settings)]
    opened: dict[tuple[str, str], Channel] = {}
    for name, channel in settings.channels.items():
        try:
            opened.update(open_channels(settings.model_copy(update={"channels": {name: channel}})))
        except GatehouseError as failure:
            errors.append(str(failure))
    return errors, opened


def check_port(http: HttpSettings) -> Finding:
    """Listen on the port for a moment, as the gateway does. Must not be called while the daemon runs."""
    where = f"{http.host} port {http.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            http.host, http.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            # As the server does: connections in TIME_WAIT do not count as a listener.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as failure:
        if failure.errno == errno.EADDRINUSE:
            return error("port", f"Another program uses {where}.", "Stop that program, or change http.port.")
        message = f"Can't listen on {where}: {failure.strerror or failure}."
        return error("port", message, "Set http.host to an address of this machine and http.port to 1024 or higher.")
    return ok("port", f"{where} is free.")


def check_permissions(directory: Path, config: Path | None, *, holds_secrets: bool) -> list[Finding]:
    """Check every file of the data directory, and the configuration file if it contains a secret."""
    findings = []
    folder = directory.resolve()  # systemd's StateDirectory is a symbolic link.
    owner = folder.stat().st_uid
    if os.geteuid() not in (owner, 0):
        message = f"{folder} belongs to user {owner}, and you are user {os.geteuid()}."
        findings.append(error("permissions", message, "Run this as the gateway's user, or give it the directory."))
    else:
        foreign, exposed, paths = [], [], [folder]
        for parent, folders, files in os.walk(folder):
            if Path(parent) == folder:
                folders[:] = [name for name in folders if name not in _UNCHECKED]
            paths += (Path(parent, name) for name in (*folders, *files))
        for path in paths:
            try:
                status = path.lstat()
            except FileNotFoundError:
                continue  # The running gateway has just removed it.
            if status.st_uid != owner:
                foreign.append(path)
            # The mode of a symbolic link means nothing.
            if not stat.S_ISLNK(status.st_mode) and status.st_mode & _OTHERS:
                exposed.append(path)
        if exposed:
            message = f"Other users can access {_name_some(exposed)} in {folder}."
            findings.append(error("permissions", message, f"chmod -R go= {folder}", partial(_make_private, exposed)))
        if foreign:
            message = (
                f"Another user owns {_name_some(foreign)} in {folder}, so the gateway may not be able to use them."
            )
            findings.append(error("permissions", message, f"As root: chown -R {owner} {folder}"))
    if config is not None and holds_secrets and config.stat().st_mode & _OTHERS:
        message = f"{config} contains a secret, and other users can read it."
        findings.append(error("permissions", message, f"chmod 600 {config}", partial(_make_private, [config])))
    return findings or [ok("permissions", f"{directory} is private.")]


def _name_some(paths: list[Path]) -> str:
    names = ", ".join(path.name for path in paths[:_NAMED_FILES])
    return f"{count(len(paths), 'file')} ({names}{', ...' if len(paths) > _NAMED_FILES else ''})"


def _make_private(paths: Iterable[Path]) -> None:
    for path in paths:
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~_OTHERS)


def check_units(home: Path, root: Path = Path("/")) -> list[Finding]:
    """Compare the installed units with those that this version ships."""
    findings = []
    for scope in ServiceScope:
        paths = service_paths(scope, home, root)
        if not paths.unit.exists():
            continue
        fix = (
            f"`gatehouse service install --{scope}` installs the current units and keeps yours as `.old` files. "
            "Put your own changes into a drop-in."
        )
        for path, shipped in shipped_units(paths).items():
            try:
                text = path.read_text(encoding="utf-8")
            except FileNotFoundError:
                findings.append(error("service", f"{path} is missing, and {paths.unit.name} needs it.", fix))
                continue
            except (OSError, ValueError) as failure:
                findings.append(warning("service", f"Can't read {path} ({failure}).", "Run this as root."))
                continue
            program = program_of(text, home)
            if path.suffix == ".service" and (program is None or not os.access(program, os.X_OK)):
                findings.append(error("service", f"{path} starts {program or 'nothing'}, which can't be run.", fix))
            elif not same_unit(text, shipped):
                findings.append(warning("service", f"{path} differs from the unit of this version.", fix))
            else:
                findings.append(ok("service", f"{path} is up to date."))
    return findings or [ok("service", "Not installed as a service. `gatehouse service install` installs it.")]
