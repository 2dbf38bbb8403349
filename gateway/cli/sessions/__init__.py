"""`gatehouse sessions`: works on conversations, through the daemon while it runs, otherwise in their files."""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from config import LogFormat, LogLevel
from gateway.admin.session_routes import MAX_LINES
from gateway.cli.common import command_parser, load_settings
from gateway.cli.sessions.maintenance import delete, restore, verify
from gateway.cli.sessions.move import move
from gateway.cli.sessions.show import list_sessions, show_session
from gateway.cli.sessions.transfer import FORMATS, export, export_all, import_files
from gateway.observability.logging import configure, secrets_in

_MAX_NUMBER = 10**18 - 1


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    summary = "List, show, export, import, move, delete, restore and verify sessions."
    parser = command_parser("sessions", summary, config)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    list_parser = commands.add_parser("list", help="list sessions")
    list_parser.add_argument(
        "--scope", metavar="SCOPE", help="only sessions of this scope, in full or briefly like web:owner"
    )
    list_parser.add_argument("--archived", action="store_true", help="archived sessions instead of the others")
    _add_json(list_parser)

    show_parser = commands.add_parser("show", help="print the messages of a session, and follow new ones")
    _add_name(show_parser)
    show_parser.add_argument(
        "--lines", type=_number_to(MAX_LINES), default=50, metavar="N", help="number of messages (default 50)"
    )
    show_parser.add_argument("--follow", action="store_true", help="print new messages until Ctrl-C")
    _add_json(show_parser)

    export_parser = commands.add_parser("export", help="write one session or all sessions to files")
    _add_name(export_parser, optional=True)
    export_parser.add_argument("--format", choices=FORMATS, help="jsonl (default, lossless), md or json")
    export_parser.add_argument(
        "--json", action="store_const", const="json", dest="format", help="same as --format json"
    )
    export_parser.add_argument("--output", type=Path, metavar="PATH", help="file to write; with --all, a folder")
    export_parser.add_argument("--all", action="store_true", help="export all sessions as jsonl to the folder --output")
    export_parser.add_argument("--force", action="store_true", help="overwrite existing files")

    import_parser = commands.add_parser("import", help="import sessions that were exported as jsonl")
    import_parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="session exported as jsonl")
    _add_json(import_parser)

    delete_parser = commands.add_parser("delete", help="delete a session permanently")
    _add_name(delete_parser)
    delete_parser.add_argument("--yes", action="store_true", help="don't ask for confirmation")
    _add_json(delete_parser)

    move_parser = commands.add_parser("move", help="move sessions to another scope, after session.dm_scope has changed")
    move_parser.add_argument(
        "source", nargs="?", metavar="FROM", help="scope to move (default: all sessions that the settings hide)"
    )
    move_parser.add_argument("target", nargs="?", metavar="TO", help="scope to move it to, in full")
    move_parser.add_argument("--yes", action="store_true", help="don't ask for confirmation")
    _add_json(move_parser)

    restore_parser = commands.add_parser("restore", help="bring a session back from the archive")
    _add_name(restore_parser)
    _add_json(restore_parser)

    verify_parser = commands.add_parser("verify", help="look for damage; exits with 1 if there is any")
    _add_json(verify_parser)

    options = parser.parse_args(arguments)
    if options.command == "export":
        is_jsonl = options.format in (None, "jsonl")
        if options.all and (options.name is not None or options.output is None or not is_jsonl):
            export_parser.error("--all takes no SCOPE, needs a folder as --output, and exports only as jsonl")
        if not options.all and options.name is None:
            export_parser.error("name a session by its SCOPE, or add --all")
        options.format = options.format or "jsonl"
    if options.command == "move" and (options.source is None) != (options.target is None):
        move_parser.error("name both scopes, FROM and TO, or neither")
    if options.command == "delete" and options.number is None and "#" not in options.name:
        delete_parser.error("add the NUMBER of the session to delete")
    if options.command == "restore" and options.number is None and "#" not in options.name:
        restore_parser.error("add the NUMBER of the session to restore")

    os.umask(0o077)
    settings = load_settings(options.config).settings
    configure(LogLevel.ERROR, LogFormat.CONSOLE, secrets_in(settings), sys.stderr)
    match options.command:
        case "list":
            return asyncio.run(list_sessions(settings, options))
        case "show":
            return asyncio.run(show_session(settings, options))
        case "export" if options.all:
            return asyncio.run(export_all(settings, options))
        case "export":
            return asyncio.run(export(settings, options))
        case "import":
            return asyncio.run(import_files(settings, options))
        case "delete":
            return delete(settings, options)
        case "move":
            return move(settings, options)
        case "restore":
            return asyncio.run(restore(settings, options))
        case _:
            return asyncio.run(verify(settings, options))


def _add_name(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    meaning = "scope of the session, in full or briefly like web:owner, or with a number like telegram:123#2"
    parser.add_argument("name", nargs="?" if optional else None, metavar="SCOPE", help=meaning)
    number = "number of the session (default: the active one)"
    parser.add_argument("number", nargs="?", type=_number_to(_MAX_NUMBER), metavar="NUMBER", help=number)


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _number_to(largest: int) -> Callable[[str], int]:
    """Return an argparse type for numbers from 1 to `largest`. Accepts a leading `#`."""

    def parse(text: str) -> int:
        digits = text.removeprefix("#")
        if not digits.isdecimal() or len(digits) > len(str(largest)) or not 1 <= int(digits) <= largest:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {largest}")
        return int(digits)

    return parse
