"""`gatehouse sessions`: the conversations, from the shell; in the daemon's hands while it runs, else in ours."""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path

from config import ConfigError, LogFormat, LogLevel, Settings
from gateway.cli.asking import parser
from gateway.cli.exits import EXIT_CONFIG, EXIT_FAILED, complain
from gateway.cli.sessions_moving import FORMATS, export, export_all, import_files
from gateway.cli.sessions_reading import list_sessions, show
from gateway.cli.sessions_upkeep import delete, verify
from gateway.cli.settings import load_settings
from gateway.cli.streams import forget
from gateway.control import NotRunning
from gateway.errors import CannotStart, Refused
from gateway.logs import configure, secrets_in
from gateway.session_routes import MOST_LINES

__all__ = ["main"]

Run = Callable[[Settings, argparse.Namespace], int]
Work = Callable[[Settings, argparse.Namespace], Coroutine[None, None, int]]


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    options = _options(arguments, config)
    os.umask(0o077)
    try:
        settings = load_settings(options.config).settings
        configure(LogLevel.ERROR, LogFormat.CONSOLE, secrets_in(settings), sys.stderr)
        code: int = options.run(settings, options)
        sys.stdout.flush()
    except (ConfigError, CannotStart) as refusal:
        return complain(refusal, EXIT_CONFIG)
    except (NotRunning, Refused) as refusal:
        return complain(refusal, EXIT_FAILED)
    except BrokenPipeError:
        forget(sys.stdout)
        raise
    except OSError as trouble:
        forget(sys.stdout)
        return complain(f"The answer could not be written: {trouble}", EXIT_FAILED)
    return code


def _options(arguments: Sequence[str], config: Path | None) -> argparse.Namespace:
    made = parser("sessions", "List, show, export, import, delete and check conversations.", config)
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_list(commands.add_parser("list", help="list the sessions"))
    _add_show(commands.add_parser("show", help="show what was said in a session, and what is being said"))
    exporting = commands.add_parser("export", help="write a session, or all, to files")
    _add_export(exporting)
    _add_import(commands.add_parser("import", help="take in sessions that were exported as jsonl"))
    deleting = commands.add_parser("delete", help="remove a session for good")
    _add_delete(deleting)
    _add_verify(commands.add_parser("verify", help="look for damage; exit 1 when there is any"))
    options = made.parse_args(arguments)
    if options.command == "export":
        _check_export(exporting, options)
    if options.command == "delete" and options.number is None and "#" not in options.name:
        deleting.error("say which session: add its NUMBER")
    return options


def _add_list(made: argparse.ArgumentParser) -> None:
    made.add_argument("--scope", metavar="SCOPE", help="only the sessions of this scope")
    _add_json(made)
    made.set_defaults(run=_in_loop(list_sessions))


def _add_show(made: argparse.ArgumentParser) -> None:
    _add_name(made)
    made.add_argument(
        "--lines", type=_lines, default=50, metavar="N", help="how many of the last lines; 50 if not said"
    )
    made.add_argument("--follow", action="store_true", help="go on with what is said from now on, until Ctrl-C")
    _add_json(made)
    made.set_defaults(run=_in_loop(show))


def _add_export(made: argparse.ArgumentParser) -> None:
    _add_name(made, optional=True)
    made.add_argument("--format", choices=FORMATS, help="jsonl, which loses nothing (as usual), md or json")
    made.add_argument("--json", action="store_const", const="json", dest="format", help="the same as --format json")
    made.add_argument("--output", type=Path, metavar="PATH", help="the file to write, or with --all the folder")
    made.add_argument("--all", action="store_true", help="export every session as jsonl to the folder --output")
    made.add_argument("--force", action="store_true", help="write over files that are there")


def _check_export(made: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.all and (options.name is not None or options.output is None or options.format not in (None, "jsonl")):
        made.error("--all takes no SCOPE, needs a folder as --output, and exports as jsonl")
    if not options.all and options.name is None:
        made.error("say which session: its SCOPE, or --all")
    options.format = options.format or "jsonl"
    options.run = _in_loop(export_all if options.all else export)


def _add_import(made: argparse.ArgumentParser) -> None:
    made.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a session that was exported as jsonl")
    _add_json(made)
    made.set_defaults(run=_in_loop(import_files))


def _add_delete(made: argparse.ArgumentParser) -> None:
    _add_name(made)
    made.add_argument("--yes", action="store_true", help="do not ask")
    _add_json(made)
    made.set_defaults(run=delete)


def _add_verify(made: argparse.ArgumentParser) -> None:
    _add_json(made)
    made.set_defaults(run=_in_loop(verify))


def _add_name(made: argparse.ArgumentParser, *, optional: bool = False) -> None:
    meaning = "whose session, as `list` tells it; or a session's whole key, which is SCOPE#NUMBER"
    made.add_argument("name", nargs="?" if optional else None, metavar="SCOPE", help=meaning)
    made.add_argument("number", nargs="?", type=_number, metavar="NUMBER", help="which one; else the active one")


def _add_json(made: argparse.ArgumentParser) -> None:
    made.add_argument("--json", action="store_true", help="print the facts as JSON")


def _number(text: str) -> int:
    return _from_one_to(10**18 - 1, text.removeprefix("#"))


def _lines(text: str) -> int:
    return _from_one_to(MOST_LINES, text)


def _from_one_to(most: int, text: str) -> int:
    if not text.isdecimal() or len(text) > len(str(most)) or not 1 <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to {most}")
    return int(text)


def _in_loop(work: Work) -> Run:
    return lambda settings, options: asyncio.run(work(settings, options))
