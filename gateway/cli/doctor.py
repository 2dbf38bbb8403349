"""`gatehouse doctor`: checks everything that an installation depends on, and suggests fixes."""

import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from config import ConfigError, LogFormat, LogLevel, Settings
from gateway import __version__
from gateway.admin.archive import open_archive, open_local_archive
from gateway.admin.client import ControlClient, NotRunning, is_running
from gateway.admin.config_check import examine_config
from gateway.admin.routes import DOCTOR_TIMEOUT, STORAGE_TIMEOUT
from gateway.cli.common import EXIT_FAILED, EXIT_OK, command_parser, load_settings
from gateway.cli.environment import trim_environment
from gateway.cli.pair import list_people
from gateway.cli.schedules import list_schedules
from gateway.cli.spool import list_spool
from gateway.cli.token import list_tokens
from gateway.doctor.cluster import check_cluster
from gateway.doctor.configuration import ConfigReport, check_port
from gateway.doctor.database import check_database
from gateway.doctor.examination import check_directory, config_findings, unusable_directory
from gateway.doctor.finding import Finding, Level, as_json, error, from_json, ok, warning
from gateway.doctor.installation import check_units
from gateway.doctor.peers import DEADLINE, check_peers
from gateway.doctor.stores import check_archiving, check_roles, check_schedules, check_sessions, check_spool
from gateway.errors import CannotStart, Refused
from gateway.observability.logging import configure
from gateway.spool import SpoolUnavailable
from gateway.text import printable
from gateway.text.plain import count

_MARKS = {Level.OK: "ok   ", Level.WARNING: "warn ", Level.ERROR: "FAIL "}


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    description = "Find problems and suggest fixes. Exits with 1 if it finds an error."
    parser = command_parser("doctor", description, config)
    parser.add_argument("--fix", action="store_true", help="repair what can be repaired without losing data")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--local", action="store_true", help="don't call platforms and models")
    options = parser.parse_args(arguments)
    configure(LogLevel.ERROR, LogFormat.CONSOLE, [], None)  # The findings contain everything the log would say.
    # With --fix, the calls to platforms and models come in the second examination, after the repairs.
    findings = _examine(options.config, is_local=options.local or options.fix)
    repaired = []
    if options.fix:
        failures = []
        for finding in findings:
            if finding.repair is None:
                continue
            repaired.append(finding)
            try:
                finding.repair()
            except (OSError, ConfigError, Refused) as failure:
                failures.append(error(finding.about, f"The repair failed: {failure}.", finding.fix))
        findings = [*_examine(options.config, is_local=options.local), *failures]
    is_well = not any(finding.level is Level.ERROR for finding in findings)
    code = EXIT_OK if is_well else EXIT_FAILED
    if options.json:
        report = {
            "is_well": is_well,
            "findings": [as_json(finding) for finding in findings],
            "mended": [as_json(finding) for finding in repaired],
        }
        print(json.dumps(report, indent=2))
        return code
    for finding in repaired:
        print(printable(f"repaired: {finding.about}: {finding.message}"))
    for finding in findings:
        print(printable(f"{_MARKS[finding.level]}{finding.about}: {' '.join(finding.message.split())}"))
        if finding.fix:
            print(printable(f"       -> {finding.fix}"))
    errors = sum(finding.level is Level.ERROR for finding in findings)
    print(f"{count(errors, 'error')} found." if errors else "No errors found.")
    if any(finding.repair is not None for finding in findings):
        print("Run `gatehouse doctor --fix` to repair what can be repaired.")
    return code


def _examine(config: Path | None, *, is_local: bool) -> list[Finding]:
    """Run all checks, with or without those that call platforms and models."""
    findings = [ok("version", f"Gatehouse {__version__} on Python {sys.version.split()[0]}.")]
    report = examine_config(partial(load_settings, config))
    findings += config_findings(report)
    settings = report.settings
    if settings is None:
        return [*findings, *check_units(Path.home())]

    directory = settings.gateway.data_dir
    is_live = is_running(directory)
    if not is_live:
        findings.append(check_port(settings.http))  # While the daemon runs, it occupies the port itself.
    findings += _check_data_dir(report, settings, is_live=is_live)
    findings += check_units(Path.home())
    if is_live:
        findings += asyncio.run(_ask_daemon(directory, is_local=is_local))
    else:
        findings.append(ok("daemon", "Not running."))
        findings += check_database(settings.storage)
        findings += asyncio.run(check_cluster(settings))
        if not is_local:
            trim_environment(settings.gateway.keep_environment)  # Everything was read by now.
            findings += asyncio.run(check_peers(settings, report.channels, DEADLINE))
    return findings


def _check_data_dir(report: ConfigReport, settings: Settings, *, is_live: bool) -> list[Finding]:
    unusable = unusable_directory(settings.gateway.data_dir)
    if unusable is not None:
        return unusable
    return [*check_directory(settings, report), *asyncio.run(_check_stores(settings, is_live=is_live))]


async def _check_stores(settings: Settings, *, is_live: bool) -> list[Finding]:
    """Check sessions and spool: through the daemon while it runs, otherwise in their files."""
    try:
        async with open_archive(settings, as_found=True) as archive:
            report = await archive.verify()
        listing = await list_spool(settings)
        schedules = await list_schedules(settings)
        roles = check_roles(settings, await list_people(settings), await list_tokens(settings))
    except SpoolUnavailable:
        return []  # Reported as a problem of the database.
    except (CannotStart, Refused) as failure:
        return [error("data", str(failure), "The gateway won't start until this is fixed.")]

    async def recover() -> None:
        """Do what a start does: add unknown transcripts, and rebuild and write the index."""
        async with open_local_archive(settings):
            pass  # Opening repairs the sessions, and closing writes the index.

    repair = None if is_live else lambda: asyncio.run(recover())
    return [*check_sessions(report, repair), *check_spool(listing), *check_schedules(schedules), *roles]


async def _ask_daemon(directory: Path, *, is_local: bool) -> list[Finding]:
    """Return the daemon's version, state and own findings. It has the password of its database, and its rights."""
    try:
        async with ControlClient(directory) as control:
            status = await control.get("/status")
            answers = []
            with suppress(Refused):  # An older version does not have it.
                answers.append(await control.post("/doctor/storage", limit=STORAGE_TIMEOUT))
            if not is_local:
                answers.append(await control.post("/doctor", limit=DOCTOR_TIMEOUT))
    except (NotRunning, Refused) as failure:
        return [error("daemon", str(failure), "Check its log, and restart it.")]
    running = str(status["version"])
    version = ok("version", f"The running gateway is {running}.")
    if running != __version__:
        message = f"The running gateway is {running}, but {__version__} is installed."
        version = warning("version", message, "Restart the gateway.")
    sentence = " ".join(str(status["sentence"]).split())
    state = ok("daemon", sentence)
    if not status["ready"]:
        state = error("daemon", f"Not ready: {sentence}", "See the other findings, and its log.")
    found = [answer.get("findings") for answer in answers]
    memory = check_archiving(status.get("archiving"))
    return [
        version,
        state,
        *memory,
        *(from_json(each) for listed in found if isinstance(listed, list) for each in listed),
    ]
