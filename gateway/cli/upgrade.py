"""`gatehouse upgrade` says how to update this installation; with `--check`, it rehearses an update on a copy."""

import asyncio
import json
import os
import shlex
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from config import LogFormat, LogLevel, StorageSettings
from config.loader import read_tables, validate
from gateway import __version__
from gateway.cli.common import EXIT_FAILED, EXIT_OK, command_parser, load_settings
from gateway.distribution import Installation
from gateway.observability.logging import configure, secrets_in
from gateway.observability.recent_log import RecentLog
from gateway.text import printable
from gateway.text.plain import took
from gateway.upgrade.rehearsal import Rehearsal, Report, Step, StepState

_MARKS = {
    StepState.OK: "ok   ",
    StepState.WARNING: "warn ",
    StepState.FAILED: "FAIL ",
    StepState.SKIPPED: "skip ",
}


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    description = (
        "Say how to update this installation. With --check: rehearse the update to this version on a copy of the data. "
        "The gateway may be running, and nothing of it is changed."
    )
    parser = command_parser("upgrade", description, config)
    parser.add_argument("--check", action="store_true", help="rehearse on a copy; exits with 1 if a step fails")
    parser.add_argument("--scratch", type=Path, metavar="FOLDER", help="where to make the copy (default: data_dir)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    if not options.check:
        if options.json or options.scratch:
            parser.error("--json and --scratch belong to --check")
        return _print_guide(options.config)
    if options.scratch is not None and not options.scratch.is_dir():
        parser.error("--scratch must be a folder that exists")
    os.umask(0o077)  # The copy contains conversations.
    recent = RecentLog()
    configure(LogLevel.INFO, LogFormat.JSON, (), None, None, recent)
    load = partial(load_settings, options.config)

    def load_storage() -> StorageSettings:
        path = load(resolves=False).path
        table = read_tables(path).get("storage", {}) if path else {}
        settings = validate({"storage": table}, path, os.environ).settings
        configure(LogLevel.INFO, LogFormat.JSON, secrets_in(settings), None, None, recent)
        return settings.storage

    def show(step: Step) -> None:
        if not options.json:
            detail = printable(step.detail).replace("\n", " ")
            print(f"{_MARKS[step.state]} {step.name:<14} {detail} ({took(step.seconds)})", flush=True)

    scratch = None if options.scratch is None else options.scratch.resolve()
    rehearsal = Rehearsal(load, load_storage, recent=recent, scratch=scratch, on_step=show)
    # The copy has to be deleted when a person or a service manager ends the command.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    report = asyncio.run(rehearsal.run())
    if options.json:
        print(json.dumps({"ok": report.is_ok, **msgspec.to_builtins(report)}, indent=2))
    else:
        print(_verdict(report))
    return EXIT_OK if report.is_ok else EXIT_FAILED


def _verdict(report: Report) -> str:
    if report.is_ok:
        return f"\nVersion {report.version} works with your data. Nothing was changed."
    failed = next((step.name for step in report.steps if step.state is StepState.FAILED), "")
    return f"\nVersion {report.version} does not work with your data: the step `{failed}` failed. Nothing was changed."


def _print_guide(config: Path | None) -> int:
    """Print the commands of an update, for the way in which this Gatehouse was installed."""
    installation = Installation.present()
    loaded = load_settings(config, resolves=False)
    named = ["--config", str(loaded.path)] if loaded.path else []
    trial = installation.trial_commands("gatehouse-next", installation.extras())
    print(
        f"This is Gatehouse {__version__}. To update it:\n\n"
        "1. Install the new version beside this one, and rehearse the update on a copy of your data:"
    )
    for command in (*trial, shlex.join(["gatehouse-next/bin/gatehouse", *named, "upgrade", "--check"])):
        print(f"     {printable(command)}")
    print("2. If that succeeds, make a backup:")
    print(f"     {printable(shlex.join(['gatehouse', *named, 'backup', f'gatehouse-{__version__}.tar.gz']))}")
    print(f"3. Update:\n     {printable(installation.upgrade_command())}")
    print("4. Restart the gateway. Its start migrates the data. docs/upgrading.md says how to go back.")
    return EXIT_OK
