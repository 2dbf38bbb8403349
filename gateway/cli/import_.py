"""`gatehouse import`: imports conversations from miniclaw and claw0. Importing a file again adds nothing."""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from config import LogFormat, LogLevel, Settings
from gateway.admin.archive import Archive, open_archive
from gateway.cli.common import EXIT_FAILED, EXIT_OK, command_parser, load_settings
from gateway.errors import Refused
from gateway.http.guard import control_users
from gateway.importing.convert import session_id, to_transcript
from gateway.importing.destination import Destination, find_destinations
from gateway.importing.parse import UnknownFormat, parse_session
from gateway.observability.logging import configure, secrets_in
from gateway.routing import DEFAULT_AGENT
from gateway.sessions import entries
from gateway.sessions.keys import parse_key
from gateway.sessions.storage.codec import DamagedEntry, decode
from gateway.text import clean, printable
from gateway.text.plain import count, in_bytes

_MAX_BYTES = 250_000_000
_SUFFIXES = (".json", ".jsonl")
_INDEX = "sessions.json"
"""Both gateways keep a list of their sessions under this name. It contains nothing that the sessions lack."""


@dataclass(slots=True, kw_only=True)
class _Outcome:
    """The result for one file."""

    file: str
    outcome: str = "failed"
    reason: str = ""
    key: str = ""
    messages: int = 0
    left_out: dict[str, int] = field(default_factory=dict)


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    parser = command_parser("import", "Import sessions from miniclaw (JSON) and claw0 (JSON lines).", config)
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="session file, or folder of session files")
    parser.add_argument("--scope", help="scope for all sessions, as in `gatehouse sessions list` (default: from keys)")
    parser.add_argument("--dry-run", action="store_true", help="print what would be imported")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    if (scope := options.scope) is not None:
        # A scope is a key without a number, so it parses as the first session of itself.
        is_scope = False
        with suppress(ValueError):
            is_scope = scope.startswith("agent:") and scope.isprintable() and parse_key(scope) == (scope, 1)
        if not is_scope:
            parser.error("--scope must be a scope like agent:main:main")
    os.umask(0o077)
    settings = load_settings(options.config, resolves=False).settings
    configure(LogLevel.ERROR, LogFormat.CONSOLE, secrets_in(settings), sys.stderr)
    outcomes = asyncio.run(_import_all(settings, options))
    code = EXIT_FAILED if any(each.outcome == "failed" for each in outcomes) else EXIT_OK
    if options.json:
        print(json.dumps([asdict(each) for each in outcomes], indent=2))
        return code
    for each in outcomes:
        line = f"{printable(clean(each.file))}: {each.outcome}"
        line += f" as {printable(each.key)}, {count(each.messages, 'message')}" if each.key else ""
        line += f", {printable(each.reason)}" if each.reason else ""
        left_out = ", ".join(count(number, kind) for kind, number in each.left_out.items())
        print(f"{line}; left out: {left_out}." if left_out else f"{line}.")
    imported = sum(each.outcome == "imported" for each in outcomes)
    print(f"Imported {count(imported, 'session')} from {count(len(outcomes), 'file')}.")
    return code


async def _import_all(settings: Settings, options: argparse.Namespace) -> list[_Outcome]:
    def find_files() -> list[Path]:
        files: list[Path] = []
        for path in options.paths:
            inside = sorted(path.rglob("*")) if path.is_dir() else []
            files += (each for each in inside if each.suffix in _SUFFIXES and each.name != _INDEX and each.is_file())
            if not path.is_dir():
                files.append(path)
        return files

    outcomes: list[_Outcome] = []
    async with open_archive(settings) as archive:
        for path in await asyncio.to_thread(find_files):
            outcome = _Outcome(file=str(path))
            try:
                await _import(archive, settings, options, path, outcome)
            except (Refused, UnknownFormat) as error:
                outcome.reason = str(error)
            except OSError as error:
                outcome.reason = f"can't read it: {error.strerror}"
            outcomes.append(outcome)
    return outcomes


async def _keys(archive: Archive, scope: str) -> list[str]:
    """Return the keys of all sessions of a scope, also of archived ones: their numbers are in use."""
    keys: list[str] = []
    for are_archived in (False, True):
        async with aclosing(archive.sessions(scope, are_archived=are_archived)) as sessions:
            keys += [listed.meta.key async for listed in sessions]
    return keys


async def _import(
    archive: Archive, settings: Settings, options: argparse.Namespace, path: Path, outcome: _Outcome
) -> None:
    """Import one file, and fill in `outcome`. Raises `Refused` or `UnknownFormat` if that is impossible."""
    status = await asyncio.to_thread(path.stat)
    if status.st_size > _MAX_BYTES:
        raise UnknownFormat(f"it is larger than {in_bytes(_MAX_BYTES)}")
    data = await asyncio.to_thread(path.read_bytes)
    session = await asyncio.to_thread(parse_session, data, datetime.fromtimestamp(status.st_mtime, UTC))
    if options.scope:
        named = options.scope.split(":")[1]
        agent = named if named in settings.agents else DEFAULT_AGENT
        destination = Destination(scope=options.scope, agent=agent, address=None)
    else:
        choices = find_destinations(settings, session, control_users()[os.getuid()])
        # The file may leave open whether its chat is a group. Sessions of the same chat that are here decide that.
        used = [each for each in choices if await _keys(archive, each.scope)]
        destination = (used or choices)[0]
    present: dict[int, str] = {}
    keys = await _keys(archive, destination.scope)
    # Only the header of a session tells its id, so read the first line of each transcript.
    for key in keys:
        async with aclosing(archive.export(key)) as blocks:
            first_line = (await anext(blocks, b"")).split(b"\n")[0]
        with suppress(DamagedEntry):
            header = decode(first_line)
            if isinstance(header, entries.Header):
                present[header.number] = header.id
    lines = list(to_transcript(session, destination, max(present, default=0) + 1, datetime.now(UTC)))
    outcome.left_out = dict(session.left_out)
    if not session.steps:
        raise Refused("it contains no messages")
    if session_id(session) in present.values():
        outcome.outcome, outcome.reason = "known", f"already imported into {destination.scope}"
        return
    outcome.outcome, outcome.key = "would be imported", decode(lines[0]).key  # type: ignore[attr-defined]  # It is the header.
    outcome.messages = sum(isinstance(decode(line), entries.User | entries.Assistant) for line in lines)
    if options.dry_run:
        return

    async def transcript() -> AsyncIterator[bytes]:
        for line in lines:
            yield line

    await archive.import_session(transcript())
    outcome.outcome = "imported"
