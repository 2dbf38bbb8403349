"""`gatehouse doctor`: look at everything an installation depends on, and say what would help."""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from config import ConfigError, Loaded, LogFormat, LogLevel, Settings
from gateway import __version__
from gateway.channels import Channels
from gateway.cli.doctor_stores import stores
from gateway.cli.exits import EXIT_FAILED, EXIT_OK
from gateway.cli.settings import load_settings
from gateway.cli.usage import parser
from gateway.contract import Channel
from gateway.control import Control, NotRunning, is_running
from gateway.dialogue import Json
from gateway.doctor.finding import Finding, Level, as_json, fine, from_json, odd, wrong
from gateway.doctor.machine import clock, disk, file_system, fsync_speed
from gateway.doctor.peers import DEADLINE, peers
from gateway.doctor.permissions import permissions
from gateway.doctor.ports import port
from gateway.doctor.routes import PATIENCE
from gateway.doctor.units import units
from gateway.errors import GatehouseError, Refused
from gateway.logs import configure
from gateway.rehearsal import NoSessions, start_faults
from gateway.text import printable

__all__ = ["main"]

_MARKS = {Level.FINE: "ok  ", Level.ODD: "odd ", Level.WRONG: "BAD "}


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    described = parser("doctor", "Look for what is wrong, and say what would help. Exit 1 when something is.", config)
    described.add_argument("--fix", action="store_true", help="mend what can be mended without losing anything")
    described.add_argument("--json", action="store_true", help="print the findings as JSON")
    described.add_argument("--local", action="store_true", help="call no platform and no model")
    options = described.parse_args(arguments)
    configure(LogLevel.ERROR, LogFormat.CONSOLE, [], None)  # The findings say it all.
    findings, mended = _examined(options)
    print(_as_json(findings, mended) if options.json else printable("\n".join(_lines(findings, mended))))
    return EXIT_FAILED if any(each.level is Level.WRONG for each in findings) else EXIT_OK


def _examined(options: argparse.Namespace) -> tuple[list[Finding], list[Finding]]:
    """Return what was found in the end, and what was mended on the way there."""
    findings = _examine(options.config, is_local=options.local or options.fix)
    if not options.fix:
        return findings, []
    mended = [each for each in findings if each.repair is not None]
    failures = [failure for each in mended if (failure := _repair(each))]
    return [*_examine(options.config, is_local=options.local), *failures], mended


def _repair(finding: Finding) -> Finding | None:
    assert finding.repair is not None, "only those are mended"  # noqa: S101 - for mypy and the reader
    try:
        finding.repair()
    except (OSError, ConfigError, Refused) as trouble:
        return wrong(finding.about, f"It could not be mended: {trouble}.", finding.fix)
    return None


def _examine(config: Path | None, *, is_local: bool) -> list[Finding]:
    versions = [fine("version", f"Gatehouse {__version__} on Python {sys.version.split()[0]}.")]
    try:
        # Whether the daemon runs decides whose secrets count, and the directory that tells it holds none.
        loaded = load_settings(config, resolves=False)
        is_live = is_running(loaded.settings.gateway.data_dir)
        if not is_live:
            loaded = load_settings(config)
    except ConfigError as mistakes:
        return [*versions, *_mistakes(mistakes), *units(Path.home())]
    local = [*_config(loaded), *_house(loaded, is_live=is_live), *units(Path.home())]
    return [*versions, *local, *asyncio.run(_inside(loaded.settings, is_live=is_live, is_local=is_local))]


def _mistakes(mistakes: ConfigError) -> list[Finding]:
    where = str(mistakes.path or "the configuration")
    return [
        wrong("config", f"{where}: {each.key} {each.message}".replace("  ", " "), each.hint or "Change it in the file.")
        for each in mistakes.problems
    ]


def _config(loaded: Loaded) -> list[Finding]:
    faults = [
        wrong("config", fault, "The gateway does not start like this.") for fault in start_faults(loaded.settings)
    ]
    oddities = [odd("config", f"{loaded.path}: {warning}.", "Change it, or leave it.") for warning in loaded.warnings]
    where = str(loaded.path) if loaded.path else "there is none, so the defaults hold"
    return [*faults, *oddities] or [fine("config", f"The configuration is sound: {where}.")]


def _house(loaded: Loaded, *, is_live: bool) -> list[Finding]:
    settings, directory = loaded.settings, loaded.settings.gateway.data_dir
    ports = [] if is_live else [port(settings.http)]
    if not directory.is_dir():
        return [*ports, fine("data", f"{directory} is not there yet; the first start makes it.")]
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        said = f"{directory} cannot be used by user {os.geteuid()}."
        return [*ports, wrong("permissions", said, "Run this as the gateway's user, or give the directory to it.")]
    return [
        *ports,
        *permissions(directory, loaded.path, holds_secrets=_holds_secrets(loaded)),
        *(disk(directory), *file_system(directory), fsync_speed(directory), clock(directory)),
    ]


def _holds_secrets(loaded: Loaded) -> bool:
    """Tell whether a secret stands in the file itself: the reader of it has warned of just that."""
    return loaded.has_exposed_secret


async def _inside(settings: Settings, *, is_live: bool, is_local: bool) -> list[Finding]:
    directory = settings.gateway.data_dir
    can_look = directory.is_dir() and os.access(directory, os.R_OK | os.W_OK | os.X_OK)
    found = await stores(settings, is_live=is_live) if can_look else []
    if is_live:
        return [*found, *await _ask_daemon(directory, is_local=is_local)]
    return [
        *found,
        fine("daemon", "It does not run."),
        *([] if is_local else await peers(settings, _channels(settings), DEADLINE)),
    ]


async def _ask_daemon(directory: Path, *, is_local: bool) -> list[Finding]:
    try:
        async with Control(directory) as control:
            status = await control.get("/status")
            told = [] if is_local else (await control.post("/doctor", patience=PATIENCE))["findings"]
    except (NotRunning, Refused) as trouble:
        return [wrong("daemon", str(trouble), "Look at its log, and restart it.")]
    findings = [from_json(each) for each in told] if isinstance(told, list) else []
    return [_version(str(status["version"])), _readiness(status), *findings]


def _version(running: str) -> Finding:
    if running != __version__:
        return odd("version", f"The running daemon is {running}, and {__version__} is installed.", "Restart it.")
    return fine("version", f"The running daemon is {running}.")


def _readiness(status: dict[str, Json]) -> Finding:
    said = " ".join(str(status["sentence"]).split())
    if status["ready"]:
        return fine("daemon", said)
    return wrong("daemon", f"It is not ready: {said}", "See what else is found here, and its log.")


def _channels(settings: Settings) -> dict[tuple[str, str], Channel]:
    """Open the channels that can be; what keeps others from it is among the faults of the configuration."""
    opened: dict[tuple[str, str], Channel] = {}
    for name, channel in settings.channels.items():
        some = Channels(NoSessions())
        try:
            some.open(settings.model_copy(update={"channels": {name: channel}}))
        except GatehouseError:  # Told as a fault of the configuration, with its reason.
            continue
        opened.update(some.by_identity)
    return opened


def _as_json(findings: list[Finding], mended: list[Finding]) -> str:
    is_well = not any(each.level is Level.WRONG for each in findings)
    told = {
        "is_well": is_well,
        "findings": [as_json(each) for each in findings],
        "mended": [as_json(each) for each in mended],
    }
    return json.dumps(told, indent=2)


def _lines(findings: list[Finding], mended: list[Finding]) -> list[str]:
    lines = [f"mended: {each.about}: {each.message}" for each in mended]
    for each in findings:
        lines.append(f"{_MARKS[each.level]} {each.about}: {' '.join(each.message.split())}")
        if each.fix:
            lines.append(f"       -> {each.fix}")
    return [*lines, _verdict(findings)]


def _verdict(findings: list[Finding]) -> str:
    bad = sum(each.level is Level.WRONG for each in findings)
    can = any(each.repair is not None for each in findings)
    hint = " `gatehouse doctor --fix` mends what is safe to mend." if can else ""
    return f"{bad} wrong.{hint}" if bad else f"All is well.{hint}"
