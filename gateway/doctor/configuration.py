"""Checks of the configuration: everything in it that would prevent a start. They block.

`gatehouse config check`, `gatehouse doctor` and the running gateway share them, so that all of them agree with
`gatehouse run`.
"""

import errno
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from config import ConfigError, FileSharing, HttpSettings, Loaded, Problem, Settings
from gateway.adapters.registry import ChannelRegistry
from gateway.commands.registry import check_role_commands
from gateway.contract import Address, Channel, CommandInfo, EarlierMessage, Line, OpenQuestion, Sender, SessionInfo
from gateway.conversation import Json
from gateway.database.migrate import missing_extra
from gateway.doctor.finding import Finding, Level, error, ok
from gateway.errors import CannotStart, GatehouseError
from gateway.files.shared import shared_files
from gateway.sessions.storage.hidden import read_hidden_sessions
from gateway.turns.agents import agent_faults

PORT = "http.port"
"""The key of the problem that the gateway cannot listen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigReport:
    """What a start would say about the configuration. With `problems`, it would fail.

    `settings` are None if the file itself is invalid. `channels` are those that can be opened.
    """

    source: str
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    settings: Settings | None = None
    channels: Mapping[tuple[str, str], Channel] = field(default_factory=dict)


def check_config(load: Callable[[], Loaded], *, is_running: bool) -> ConfigReport:
    """Load the configuration and look for everything that would prevent a start. Writes no file and calls no peer.

    While the gateway that uses the configuration `is_running`, it occupies the port itself.
    """
    try:
        loaded = load()
    except ConfigError as invalid:
        return ConfigReport(source=str(invalid.path or "The settings"), problems=invalid.problems)
    settings = loaded.settings
    errors = [*agent_faults(settings), *_folder_errors(settings)]
    try:
        check_role_commands(settings)
    except CannotStart as fault:
        errors.append(str(fault))
    if extra := missing_extra(settings.storage):
        errors.append(extra)
    if settings.files.shared is FileSharing.S3:
        try:
            shared_files(settings)
        except CannotStart as missing:
            errors.append(str(missing))
    channels: dict[tuple[str, str], Channel] = {}
    for name, channel in settings.channels.items():
        try:
            channels.update(open_channels(settings.model_copy(update={"channels": {name: channel}})))
        except GatehouseError as failure:
            errors.append(str(failure))
    problems = [Problem(key="", message=message) for message in errors]
    if not is_running and (port := check_port(settings.http)).level is Level.ERROR:
        problems.append(Problem(key=PORT, message=port.message, hint=port.fix))
    return ConfigReport(
        source=loaded.source,
        problems=tuple(problems),
        warnings=(*loaded.warnings, *([str(hidden)] if (hidden := read_hidden_sessions(settings)) else [])),
        settings=settings,
        channels=channels,
    )


def _folder_errors(settings: Settings) -> Iterator[str]:
    """Yield a sentence for each folder in which the gateway could not create its files."""
    gateway = settings.gateway
    folders = {"gateway.data_dir": gateway.data_dir}
    if not gateway.workspace_root.is_relative_to(gateway.data_dir):
        folders["gateway.workspace_root"] = gateway.workspace_root
    if gateway.log_file is not None:
        folders["gateway.log_file"] = gateway.log_file.parent
    for key, folder in folders.items():
        existing = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
        if not existing.is_dir():
            yield f"{key}: {existing} is not a folder. Choose another path."
        elif not os.access(existing, os.W_OK | os.X_OK):
            yield f"{key}: this user may not write to {existing}. Change its permissions, or choose another path."
        # A start makes the data directory private, which only its owner may do.
        elif existing == gateway.data_dir and os.geteuid() not in {0, existing.stat().st_uid}:
            yield f"{key}: {existing} belongs to another user. Run this as that user, or choose another path."
    if gateway.log_file is not None and os.path.lexists(gateway.log_file) and not gateway.log_file.is_file():
        yield f"gateway.log_file: {gateway.log_file} is not a file. Choose another path."


def report_as_json(report: ConfigReport) -> dict[str, Json]:
    return {
        "source": report.source,
        "problems": [
            {"key": problem.key, "message": problem.message, "hint": problem.hint} for problem in report.problems
        ],
        "warnings": list(report.warnings),
    }


def report_from_json(value: Mapping[str, Json]) -> ConfigReport:
    """Read a report that a daemon has sent. It contains no settings, because those contain secrets."""
    problems, warnings = value.get("problems"), value.get("warnings")
    return ConfigReport(
        source=str(value.get("source", "")),
        problems=tuple(
            Problem(key=str(each.get("key", "")), message=str(each.get("message", "")), hint=str(each.get("hint", "")))
            for each in (problems if isinstance(problems, list) else [])
            if isinstance(each, dict)
        ),
        warnings=tuple(str(each) for each in (warnings if isinstance(warnings, list) else [])),
    )


class NoSessions:
    """An empty session browser, for channels that are opened but never run."""

    def sessions(self, _address: Address, _sender: Sender, _guild: str | None = None) -> list[SessionInfo]:
        return []

    async def history(self, _address: Address, _sender: Sender, *, limit: int) -> list[Line]:
        return [][:limit]

    def questions(self, _address: Address, _sender: Sender) -> list[OpenQuestion]:
        return []

    async def earlier(self, _address: Address, _sender: Sender, _event_id: str) -> EarlierMessage:
        return EarlierMessage()

    def commands(self, _address: Address | None = None, _sender: Sender | None = None) -> list[CommandInfo]:
        return []

    def max_message_chars(self) -> int:
        return 0


def open_channels(settings: Settings) -> Mapping[tuple[str, str], Channel]:
    """Open all enabled channels without running them. By their contract, that does no I/O."""
    channels = ChannelRegistry(NoSessions())
    channels.open(settings)
    return channels.by_identity


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
