"""`gatehouse migrate`: copies sessions and the spool to another storage engine."""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

from config import Settings, StorageEngine, StorageSettings, destination, set_values
from config.loader import validate
from gateway.cli.common import EXIT_OK, command_parser, load_settings, log_to_stderr, print_error
from gateway.data_dir import UNFINISHED_COPY_FILE, DataDirLock, prepare_data_dir, require_complete_restore
from gateway.errors import Refused
from gateway.storage_copy.copy import CopyProgress, CopyReport, copy_storage
from gateway.storage_copy.files import has_sessions, move_aside
from gateway.storage_copy.open import explained, identity_of, open_copy_source, open_copy_target
from gateway.text import printable
from gateway.text.plain import count

_TTY_INTERVAL = 0.2
_LOG_INTERVAL = 10.0
_NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    storage: StorageSettings
    data_dir: Path

    @property
    def identity(self) -> str:
        return identity_of(self.storage, self.data_dir)


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    options = _parser(config).parse_args(arguments)
    log_to_stderr()
    os.umask(0o077)  # The copy contains conversations.
    loaded = load_settings(options.config)
    target = _target(options, loaded.settings)
    started = monotonic()
    source, report, set_aside = _migrate(loaded.settings, target, replaces=options.replace)
    changes = _config_changes(loaded.settings, target)
    if options.switch:
        set_values(destination(options.config, os.environ, Path.cwd(), Path.home()), changes)
    if options.json:
        facts = {"source": source, "target": target.identity, "seconds": round(monotonic() - started, 1)}
        print(json.dumps({**facts, **asdict(report), "switched": options.switch}))
        return EXIT_OK
    _print_report(report, source, target)
    if set_aside is not None:
        print(f"The previous files are in {printable(str(set_aside))}.")
    if options.switch:
        print("The configuration names the new storage now. Start the gateway to use it.")
    else:
        print("To use the copy, run this before you start the gateway again:\n")
        for command in _commands(changes, options.config):
            print(f"  {printable(command)}")
    if "gateway.data_dir" in changes:
        print(
            f"\nThen move everything else from {printable(str(loaded.settings.gateway.data_dir))} to the new folder: "
            "files, memory, workspace and http.token."
        )
    return EXIT_OK


def _parser(config: Path | None) -> argparse.ArgumentParser:
    description = (
        "Copy all sessions and the spool from the configured storage to another one, and verify the copy. The gateway "
        "must not be running. The present storage stays as it is. Run the command again if it was interrupted."
    )
    parser = command_parser("migrate", description, config)
    parser.add_argument("--to", required=True, metavar="URL", help="files:, sqlite:///PATH or postgresql://...")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="with files: the folder, instead of data_dir")
    parser.add_argument("--replace", action="store_true", help="with files: move old sessions in the folder aside")
    parser.add_argument("--switch", action="store_true", help="set storage.url to the copy when it is complete")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def _target(options: argparse.Namespace, settings: Settings) -> _Target:
    storage = validate({"storage": {"url": options.to}}, None, os.environ).settings.storage
    present = settings.storage
    kept = {name: getattr(present, name) for name in ("connect_timeout", "statement_timeout", "lock_timeout")}
    if storage.engine is StorageEngine.POSTGRESQL and storage.password is None:
        kept["password"] = present.password
    storage = storage.model_copy(update=kept)
    if storage.engine is not StorageEngine.FILES and (options.data_dir or options.replace):
        raise Refused("--data-dir and --replace are for files: only.")
    if options.data_dir and options.switch:
        raise Refused("--switch cannot change gateway.data_dir. Leave it out, and follow the steps at the end.")
    directory = options.data_dir.absolute() if options.data_dir else settings.gateway.data_dir
    target = _Target(storage=storage, data_dir=directory)
    if target.identity == identity_of(present, settings.gateway.data_dir):
        raise Refused(f"{target.identity} is the present storage already. Name another one with --to.")
    return target


def _migrate(settings: Settings, target: _Target, *, replaces: bool) -> tuple[str, CopyReport, Path | None]:
    """Return the name of the source, what was copied, and where the old files of the target are."""
    directory = settings.gateway.data_dir
    set_aside = None
    with ExitStack() as stack:
        for folder in dict.fromkeys((directory, target.data_dir)):
            prepare_data_dir(folder)
            stack.enter_context(DataDirLock(folder))
            require_complete_restore(folder)
        stack.enter_context(explained())
        source = stack.enter_context(open_copy_source(settings.storage, directory))
        is_files = target.storage.engine is StorageEngine.FILES
        is_unfinished = (target.data_dir / UNFINISHED_COPY_FILE).exists()
        if is_files and replaces and not is_unfinished and has_sessions(target.data_dir):
            set_aside = move_aside(target.data_dir, datetime.now(UTC))
        writer = stack.enter_context(open_copy_target(target.storage, target.data_dir))
        report = copy_storage(source, writer, on_progress=_progress_printer())
        return source.identity, report, set_aside


def _progress_printer() -> Callable[[CopyProgress], None]:
    """Print how far the copy is: on one line of a terminal, or now and then as a line of its own."""
    is_terminal = sys.stderr.isatty()
    interval = _TTY_INTERVAL if is_terminal else _LOG_INTERVAL
    printed_at = monotonic()

    def show(progress: CopyProgress) -> None:
        nonlocal printed_at
        is_last = progress.done == progress.total and is_terminal
        if monotonic() - printed_at < interval and not is_last:
            return
        printed_at = monotonic()
        doing = {"copy": "Copying", "verify": "Verifying", "finish": "Indexing"}[progress.step]
        text = f"{doing}: {progress.done:,} of {count(progress.total, 'session')}"
        if is_terminal:
            sys.stderr.write(f"\r{text}\x1b[K" + ("\n" if is_last else ""))
            sys.stderr.flush()
        else:
            print_error(text)

    return show


def _print_report(report: CopyReport, source: str, target: _Target) -> None:
    archived = f" and {count(report.archived, 'archived session')}" if report.archived else ""
    rows = sum(report.rows.values())
    print(
        f"Copied {count(report.sessions, 'session')}{archived} with {count(report.entries, 'transcript line')}, and "
        f"{count(rows, 'row')} of the spool, to {printable(target.identity)}. Every line was read back and compared."
    )
    if report.resumed:
        print(f"An earlier run had copied {report.resumed:,} of them.")
    if report.left_out:
        print(f"Left out: {count(report.left_out, 'line')} of transcripts that can't be read, or that are there twice.")
    if report.unreadable:
        names = ", ".join(map(printable, report.unreadable[:_NAMES_SHOWN]))
        print(f"Left out: {count(len(report.unreadable), 'file')} without a session that can be read: {names}.")
    print(f"{printable(source)} is unchanged.")


def _config_changes(settings: Settings, target: _Target) -> dict[str, object]:
    """Return the keys to change, in an order in which each step is valid. None removes a key."""
    changes: dict[str, object] = {}
    if settings.storage.password is not None and target.storage.engine is not StorageEngine.POSTGRESQL:
        changes["storage.password"] = None
    if settings.storage.mirror and target.storage.engine is StorageEngine.FILES:
        changes["storage.mirror"] = None
    changes["storage.url"] = target.storage.url
    if target.data_dir != settings.gateway.data_dir:
        changes["gateway.data_dir"] = str(target.data_dir)
    return changes


def _commands(changes: dict[str, object], config: Path | None) -> list[str]:
    program = ["gatehouse", *(["--config", str(config)] if config else []), "config"]
    return [
        shlex.join([*program, "unset", key] if value is None else [*program, "set", key, str(value)])
        for key, value in changes.items()
    ]
