"""`gatehouse import`: conversations of miniclaw and claw0 become sessions here. A second time adds nothing."""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from config import ConfigError, LogFormat, LogLevel, Settings
from gateway.archive import Archive, closing
from gateway.cli.asking import parser
from gateway.cli.exits import EXIT_CONFIG, EXIT_FAILED, EXIT_OK, complain
from gateway.cli.sessions_archives import opened_archive
from gateway.cli.settings import load_settings
from gateway.control import NotRunning
from gateway.errors import CannotStart, Refused
from gateway.http.checks import control_users
from gateway.importing import Foreign, Place, Unreadable, placed, read, session_id, transcript
from gateway.logs import configure, secrets_in
from gateway.routing import DEFAULT_AGENT
from gateway.sessions import entries
from gateway.sessions.encoding import Damaged, decode
from gateway.sessions.names import parse_key
from gateway.text import clean, printable
from gateway.text.phrases import count

__all__ = ["main"]

_LARGEST = 256 * 1024 * 1024
_ENDINGS = (".json", ".jsonl")
_INDEX = "sessions.json"
"""Both gateways keep a list of their sessions under this name; all that it says is in the sessions too."""


@dataclass(slots=True, kw_only=True)
class _Outcome:
    """What became of one file."""

    file: str
    outcome: str = "failed"
    reason: str = ""
    key: str = ""
    messages: int = 0
    left_out: dict[str, int] = field(default_factory=dict)


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    options = _options(arguments, config)
    os.umask(0o077)
    try:
        settings = load_settings(options.config, resolves=False).settings
        configure(LogLevel.ERROR, LogFormat.CONSOLE, secrets_in(settings), sys.stderr)
        outcomes = asyncio.run(_import_all(settings, options))
    except (ConfigError, CannotStart) as refusal:
        return complain(refusal, EXIT_CONFIG)
    except (NotRunning, Refused) as refusal:
        return complain(refusal, EXIT_FAILED)
    print(json.dumps([asdict(each) for each in outcomes], indent=2) if options.json else _told(outcomes))
    return EXIT_FAILED if any(each.outcome == "failed" for each in outcomes) else EXIT_OK


def _options(arguments: Sequence[str], config: Path | None) -> argparse.Namespace:
    made = parser("import", "Take in the conversations of miniclaw (JSON) and claw0 (JSON lines).", config)
    made.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a session file, or a folder with some")
    made.add_argument("--scope", help="where all of it belongs, as `gatehouse sessions list` tells it; else by its key")
    made.add_argument("--dry-run", action="store_true", help="only say what would be taken")
    made.add_argument("--json", action="store_true", help="print the facts as JSON")
    options = made.parse_args(arguments)
    if options.scope is not None and not _is_scope(options.scope):
        made.error("--scope has to be a scope like agent:main:main")
    return options


def _is_scope(text: str) -> bool:
    try:
        return text.startswith("agent:") and text.isprintable() and parse_key(text) == (text, 1)
    except ValueError:
        return False


async def _import_all(settings: Settings, options: argparse.Namespace) -> list[_Outcome]:
    outcomes: list[_Outcome] = []
    async with opened_archive(settings) as archive:
        for path in await asyncio.to_thread(lambda: list(_files(options.paths))):
            outcome = _Outcome(file=str(path))
            try:
                await _import(archive, settings, options, path, outcome)
            except (Refused, Unreadable) as refusal:
                outcome.reason = str(refusal)
            except OSError as trouble:
                outcome.reason = f"it cannot be read: {trouble.strerror}"
            outcomes.append(outcome)
    return outcomes


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        inside = sorted(each for each in path.rglob("*") if each.suffix in _ENDINGS and each.is_file())
        yield from (each for each in inside if each.name != _INDEX)


async def _import(
    archive: Archive, settings: Settings, options: argparse.Namespace, path: Path, outcome: _Outcome
) -> None:
    foreign = await asyncio.to_thread(_read, path)
    place = Place(scope=options.scope, agent=_agent(settings, options.scope), address=None) if options.scope else None
    place = place or placed(settings, foreign, control_users()[os.getuid()])
    found = {each.number: each.id async for each in _headers(archive, place.scope)}
    number = max(found, default=0) + 1
    lines = list(transcript(foreign, place, number, datetime.now(UTC)))
    outcome.left_out = dict(foreign.left_out)
    if not foreign.steps:
        raise Refused("nothing was said in it")
    if session_id(foreign) in found.values():
        outcome.outcome, outcome.reason = "known", f"it was imported into {place.scope} before"
        return
    outcome.outcome, outcome.key = "would be imported", decode(lines[0]).key  # type: ignore[attr-defined]  # It is the header.
    outcome.messages = sum(isinstance(decode(line), entries.User | entries.Assistant) for line in lines)
    if not options.dry_run:
        await archive.bring_in(_arriving(lines))
        outcome.outcome = "imported"


def _read(path: Path) -> Foreign:
    status = path.stat()
    if status.st_size > _LARGEST:
        raise Unreadable(f"it is larger than {_LARGEST // 1024**2} MB")
    return read(path.read_bytes(), datetime.fromtimestamp(status.st_mtime, UTC))


def _agent(settings: Settings, scope: str) -> str:
    named = scope.split(":")[1]
    return named if named in settings.agents else DEFAULT_AGENT


async def _headers(archive: Archive, scope: str) -> AsyncIterator[entries.Header]:
    """Yield the first lines of the sessions that a scope has."""
    async with closing(archive.sessions(scope)) as sessions:
        keys = [listed.meta.key async for listed in sessions]
    for key in keys:
        async with closing(archive.export(key)) as blocks:
            line = (await anext(blocks, b"")).split(b"\n")[0]
        try:
            header = decode(line)
        except Damaged:
            continue
        if isinstance(header, entries.Header):
            yield header


async def _arriving(lines: Sequence[bytes]) -> AsyncIterator[bytes]:
    for line in lines:
        yield line


def _told(outcomes: Sequence[_Outcome]) -> str:
    taken = sum(each.outcome == "imported" for each in outcomes)
    return "\n".join([*map(_line, outcomes), f"Imported {count(taken, 'session')} of {count(len(outcomes), 'file')}."])


def _line(each: _Outcome) -> str:
    said = f"{printable(clean(each.file))}: {each.outcome}"
    said += f" as {printable(each.key)}, {count(each.messages, 'message')}" if each.key else ""
    said += f", {printable(each.reason)}" if each.reason else ""
    left = ", ".join(count(number, what) for what, number in each.left_out.items())
    return f"{said}; left out: {left}." if left else f"{said}."
