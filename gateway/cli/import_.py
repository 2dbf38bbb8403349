"""`gatehouse import`: moves conversations, memory and settings of other gateways here. A second import adds nothing."""

import argparse
import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic

from config import LogFormat, LogLevel, Settings
from gateway.admin.archive import Archive, open_archive
from gateway.cli.common import EXIT_FAILED, EXIT_OK, command_parser, load_settings
from gateway.contract import PeerKind
from gateway.distribution import Installation
from gateway.http.guard import control_users
from gateway.importing.gateways import FILES, GATEWAYS, installed_gateways, open_gateway
from gateway.importing.openclaw import MissingZstandard
from gateway.importing.plan import Plan, PlannedSession, make_plan, reasons
from gateway.importing.proposal import has_content, proposed_config
from gateway.importing.values import ForeignGateway, UnknownFormat
from gateway.importing.writer import ImportReport, write_plan
from gateway.observability.logging import configure, secrets_in
from gateway.private_files import CREATE, open_private, write_all
from gateway.sessions.keys import parse_key
from gateway.text import clean, printable
from gateway.text.plain import count

_MAX_CHATS = 40
"""Chats that are listed for people. `--json` lists every session."""
_TTY_INTERVAL, _LOG_INTERVAL = 0.1, 10.0
"""Seconds between two lines of progress, in a terminal and elsewhere."""


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    parser = command_parser(
        "import",
        "Move conversations, memory and settings of OpenClaw, nanobot, hermes-agent, PicoClaw, miniclaw or claw0 here.",
        config,
    )
    parser.add_argument(
        "paths",
        nargs="*",
        type=Path,
        metavar="PATH",
        help="folder of another gateway, or session file (default: show what the home folder has)",
    )
    parser.add_argument(
        "--from", dest="maker", choices=[*GATEWAYS, *FILES], help="the gateway (default: its files tell)"
    )
    parser.add_argument(
        "--scope", help="scope for all sessions, as in `gatehouse sessions list` (default: their chats)"
    )
    parser.add_argument(
        "--memory-scope", help="scope that gets the memory, if several people have talked to the gateway"
    )
    parser.add_argument(
        "--write-config", type=Path, metavar="FILE", help="write the proposed configuration to a new file"
    )
    parser.add_argument("--secrets", action="store_true", help="write tokens and keys to that file, too")
    parser.add_argument("--skip-damaged", action="store_true", help="import the rest if something is damaged")
    parser.add_argument("--dry-run", action="store_true", help="only print the plan")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    for name in ("scope", "memory_scope"):
        if getattr(options, name) is not None and not _is_scope(getattr(options, name)):
            parser.error(f"--{name.replace('_', '-')} must be a scope like agent:main:main")
    if options.secrets and options.write_config is None:
        parser.error("--secrets needs --write-config FILE, because secrets are not printed")
    os.umask(0o077)
    settings = load_settings(options.config, resolves=False).settings
    configure(LogLevel.ERROR, LogFormat.CONSOLE, secrets_in(settings), sys.stderr)
    paths: list[Path] = options.paths
    if not paths:
        if options.maker is None:
            return _show_installed(as_json=options.json)
        if options.maker in FILES:
            parser.error(f"name the folder with the session files of {options.maker}")
        paths = [Path.home() / GATEWAYS[options.maker].DEFAULT_FOLDER]
    return asyncio.run(_import_all(settings, options, paths))


def _is_scope(scope: str) -> bool:
    # A scope is a key without a number, so it parses as the first session of itself.
    with suppress(ValueError):
        return scope.startswith("agent:") and scope.isprintable() and parse_key(scope) == (scope, 1)
    return False


def _show_installed(*, as_json: bool) -> int:
    found = installed_gateways(Path.home())
    if as_json:
        print(json.dumps([{"gateway": name, "folder": str(folder)} for name, folder in found], indent=2))
        return EXIT_OK
    for name, folder in found:
        print(f"{name}: {printable(str(folder))}. Look at the plan with `gatehouse import --from {name} --dry-run`.")
    if not found:
        names = ", ".join(GATEWAYS)
        print(f"There is no data of {names} in your home folder. Name a folder: `gatehouse import PATH`.")
    return EXIT_OK


async def _import_all(settings: Settings, options: argparse.Namespace, paths: Sequence[Path]) -> int:
    results = []
    async with open_archive(settings) as archive:
        for path in paths:
            try:
                results.append(await _import(archive, settings, options, path))
            except MissingZstandard as error:
                command = Installation.present().extra_command("openclaw")
                results.append(_refused(path, f"{error}. Install it: {command}", options))
            except UnknownFormat as error:
                results.append(_refused(path, f"{error}.", options))
    if options.json:
        print(json.dumps(results, indent=2, ensure_ascii=False))
    return EXIT_OK if all(result["ok"] for result in results) else EXIT_FAILED


def _refused(path: Path, why: str, options: argparse.Namespace) -> dict[str, object]:
    if not options.json:
        print(printable(clean(f"Nothing was imported from {path}: {why}")), file=sys.stderr)
    return {"ok": False, "folder": str(path), "error": why}


async def _import(archive: Archive, settings: Settings, options: argparse.Namespace, path: Path) -> dict[str, object]:
    """Plan the import of one gateway, show the plan, and carry it out. Returns it for `--json`."""
    gateway = await asyncio.to_thread(open_gateway, path, options.maker or "")
    progress = _Progress()
    plan = await make_plan(
        gateway,
        archive,
        settings,
        user=control_users()[os.getuid()],
        scope=options.scope or "",
        memory_scope=options.memory_scope or "",
        progress=progress.show,
    )
    progress.total = len(plan.new)
    progress.clear()
    if not options.json:
        _print_plan(gateway, plan)
    addresses = [each.destination.address for each in plan.sessions]
    groups = [each for each in addresses if each is not None and each.kind is not PeerKind.DIRECT]
    propose = partial(proposed_config, gateway.maker, gateway.settings, groups)
    # This one may be printed, also with --secrets: nothing is written in a dry run, or if something is damaged.
    proposal = propose(with_secrets=False) if has_content(gateway.settings) else ""
    report: ImportReport | None = None
    stops = plan.is_damaged and not options.skip_damaged
    if not stops and not options.dry_run:
        report = await write_plan(gateway, plan, archive, progress.show)
        progress.clear()
    written = ""
    if proposal and not stops and not options.dry_run:
        written = _write_config(options, propose(with_secrets=options.secrets))
    if not options.json:
        _print_result(plan, report, stops=stops, written=written, proposal=proposal)
    failed = report is not None and bool(report.failed or report.memory_failed)
    return {
        "ok": not plan.is_damaged and not failed and not written.startswith("The proposed"),
        "gateway": gateway.maker,
        "folder": str(gateway.folder),
        "dry_run": options.dry_run,
        "sessions": [_session(each, report) for each in plan.sessions],
        "memory": [
            {"file": each.file, "scope": each.scope, "statements": len(each.memory.statements)} for each in plan.memory
        ],
        "new_statements": report.statements if report else 0,
        "left_out": [{"what": each.what, "why": each.why, "damaged": each.is_damaged} for each in plan.left_out],
        "config": written or proposal,
    }


def _session(session: PlannedSession, report: ImportReport | None) -> dict[str, object]:
    failure = report.failed.get(session.id, "") if report else ""
    outcome = "known" if session.is_known else "planned" if report is None else "failed" if failure else "imported"
    return {
        "outcome": outcome,
        "source": session.source,
        "scope": session.destination.scope,
        "key": session.key,
        "active": session.activates,
        "reachable": session.is_reachable,
        "title": session.title,
        "name": session.name,
        "messages": session.messages,
        "tool_calls": session.tool_calls,
        "left_out": session.left_out,
        **({"reason": failure} if failure else {}),
    }


def _write_config(options: argparse.Namespace, proposal: str) -> str:
    """Write the proposed configuration to a new file. Returns a sentence about it; nothing if none is wanted."""
    if options.write_config is None:
        return ""
    try:
        descriptor = open_private(options.write_config, CREATE)
    except FileExistsError:
        return f"The proposed configuration was not written: {options.write_config} exists. Choose another name."
    except OSError as error:
        return f"The proposed configuration was not written to {options.write_config}: {error.strerror}."
    try:
        write_all(descriptor, proposal.encode())
    finally:
        os.close(descriptor)
    return f"Wrote the proposed configuration to {options.write_config}. Nothing uses it yet."


def _print_plan(gateway: ForeignGateway, plan: Plan) -> None:
    print(f"{gateway.maker} in {_shown(gateway.folder)}:")
    chats: dict[str, list[PlannedSession]] = {}
    for session in plan.sessions:
        chats.setdefault(session.destination.scope, []).append(session)
    kinds = Counter(_kind(sessions[0]) for sessions in chats.values())
    if chats:
        print(f"  Chats: {', '.join(count(number, kind) for kind, number in kinds.items())}.")
    for scope, sessions in list(chats.items())[:_MAX_CHATS]:
        known = sum(each.is_known for each in sessions)
        said = f"{count(len(sessions), 'session')}, {count(sum(each.messages for each in sessions), 'message')}"
        if calls := sum(each.tool_calls for each in sessions):
            said += f", {count(calls, 'tool call')}"
        if known:
            said += "; already here" if known == len(sessions) else f"; {known} of them already here"
        if active := next((each for each in sessions if each.activates), None):
            said += f"; session {active.number} becomes the active one"
        if not sessions[0].is_reachable:
            said += "; with your settings no message gets there, so see docs/importing.md"
        name = next((f" ({_shown(each.name)})" for each in sessions if each.name), "")
        print(f"    {_shown(scope)}{name}: {said}.")
    if len(chats) > _MAX_CHATS:
        print(f"    and {len(chats) - _MAX_CHATS} more; --json lists all.")
    for memory in plan.memory:
        statements = count(len(memory.memory.statements), "statement")
        print(f"  Memory: {statements} of {_shown(memory.file)} for {_shown(memory.scope)}.")
    parts = Counter[str]()
    for session in plan.new:
        parts.update(session.left_out)
    if parts:
        print(f"  Left out of these sessions: {', '.join(count(number, kind) for kind, number in parts.items())}.")
    if plan.left_out:
        print("  Left out:")
    for why, number, example in reasons(plan.left_out):
        others = f" and {number - 1} more" if number > 1 else ""
        print(f"    {_shown(example)}{others}: {_shown(why)}.")


def _kind(session: PlannedSession) -> str:
    address = session.destination.address
    if address is None:
        return "shared chat"
    return {PeerKind.DIRECT: "direct chat", PeerKind.GROUP: "group", PeerKind.CHANNEL: "channel"}[address.kind]


def _print_result(plan: Plan, report: ImportReport | None, *, stops: bool, written: str, proposal: str) -> None:
    if proposal and not written:
        print("\nProposed configuration, which nothing applies:\n")
        print("\n".join(f"    {_shown(line)}".rstrip() for line in proposal.splitlines()), end="\n\n")
    if written:
        print(_shown(written))
    if stops:
        damaged = count(sum(each.is_damaged for each in plan.left_out), "item")
        print(f"Nothing was imported: {damaged} can't be read. --skip-damaged imports the rest.")
        return
    if report is None:
        print(f"Would import {count(len(plan.new), 'session')}. Nothing was written.")
        return
    for session in plan.new:
        if session.id in report.failed:
            print(f"Failed: {_shown(session.source)}: {_shown(report.failed[session.id])}")
    for failure in report.memory_failed:
        print(f"Failed: {_shown(failure)}")
    here = ""
    if known := len(plan.sessions) - len(plan.new):
        here = f"; {count(known, 'session')} {'was' if known == 1 else 'were'} already here"
    print(f"Imported {count(report.sessions, 'session')} and {count(report.statements, 'statement')}{here}.")


def _shown(value: object) -> str:
    return printable(clean(str(value)))


class _Progress:
    """Shows on stderr how far an import is: often in a terminal, and now and then elsewhere."""

    def __init__(self) -> None:
        self.total = 0
        self._is_tty = sys.stderr.isatty()
        self._shown_at = monotonic()

    def show(self, what: str, number: int) -> None:
        now = monotonic()
        if now - self._shown_at < (_TTY_INTERVAL if self._is_tty else _LOG_INTERVAL):
            return
        self._shown_at = now
        of = f" of {self.total:,}" if self.total else ""
        text = f"{what.capitalize()} {number:,}{of} sessions ..."
        print(
            f"\r\x1b[K{text}" if self._is_tty else text, end="" if self._is_tty else "\n", file=sys.stderr, flush=True
        )

    def clear(self) -> None:
        if self._is_tty:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
