"""`gatehouse schedules`: lists schedules, shows their runs, and pauses, resumes, runs or deletes them."""

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec

from config import Settings
from gateway.access.guests import FACTS, GuestBook
from gateway.access.rules import Live
from gateway.access.tokens import TOKEN_FACTS, TokenBook
from gateway.admin.client import ControlClient, is_running
from gateway.api import types as t
from gateway.api.schedules import describe_runs, describe_schedule
from gateway.cli.common import EXIT_OK, command_parser, load_settings, log_to_stderr
from gateway.conversation import Json
from gateway.data_dir import DataDirLock, prepare_data_dir, require_complete_restore
from gateway.errors import Refused
from gateway.schedules import Schedules
from gateway.schedules.schedules import Action
from gateway.spool import ScheduleState
from gateway.storage import open_storage
from gateway.text import draw_table, excerpt, printable
from gateway.text.plain import count, local_time

_PAGE = 200
_WIDTH = 50
_DONE = {Action.PAUSE: "Paused", Action.RESUME: "Resumed", Action.RUN: "Running", Action.DELETE: "Deleted"}


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    description = "List schedules, show their runs, and pause, resume, run or delete them."
    parser = command_parser("schedules", description, config)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "action",
        nargs="?",
        choices=("list", "show", *Action),
        default="list",
        help="list (default), show ID, pause ID, resume ID, run ID or delete ID",
    )
    parser.add_argument("id", nargs="?", metavar="ID", help="the id that the list shows")
    options = parser.parse_args(arguments)
    if (options.action == "list") == bool(options.id):
        parser.error("Write it as `gatehouse schedules ACTION ID`. `gatehouse schedules list` shows the ids.")
    settings = load_settings(options.config, resolves=False).settings
    log_to_stderr()
    answer = asyncio.run(_ask(settings, options.action, options.id or ""))
    if options.json:
        print(json.dumps(answer, indent=2))
        return EXIT_OK
    if options.action == "list":
        print(printable(_table(msgspec.convert(answer["schedules"], list[t.ScheduleInfo]))))
        return EXIT_OK
    info = msgspec.convert(answer["schedule"], t.ScheduleInfo)
    if options.action == "show":
        print(printable(_details(info, msgspec.convert(answer["runs"], list[t.ScheduleRunInfo]))))
    else:
        print(printable(f"{_DONE[Action(options.action)]} the schedule {info.name or info.id}."))
    return EXIT_OK


async def list_schedules(settings: Settings) -> list[dict[str, Json]]:
    """Return all schedules as the API describes them. Raises `Refused` or `CannotStart` as the command does."""
    listed = (await _ask(settings, "list", ""))["schedules"]
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


async def _ask(settings: Settings, action: str, name: str) -> dict[str, Json]:
    """Ask the running daemon. If none runs, use its spool under its lock."""
    directory = settings.gateway.data_dir
    if await asyncio.to_thread(is_running, directory):
        async with ControlClient(directory) as control:
            return await _ask_daemon(control, action, name)
    prepare_data_dir(directory)
    with DataDirLock(directory):
        require_complete_restore(directory)
        async with open_storage(settings) as (spool, _):
            now = partial(datetime.now, UTC)
            guests, tokens = GuestBook(), TokenBook(now)
            guests.read(await spool.facts(FACTS))
            tokens.read(await spool.facts(TOKEN_FACTS))
            schedules = Schedules(Live(settings, guests, tokens), spool, asyncio.Event(), now=now)
            if action == "list":
                rows = await spool.schedules()
                return {"schedules": _plain([describe_schedule(schedules, row) for row in rows])}
            row = await spool.find_schedule(name)
            if row is None or row.state is ScheduleState.DELETED:
                raise Refused("There is no schedule with this id. `gatehouse schedules list` shows them.")
            if action != "show":
                row = await schedules.apply(row, Action(action))
            runs = _plain(describe_runs(await spool.schedule_runs(row.id, limit=_PAGE)).runs)
            return {"schedule": _plain(describe_schedule(schedules, row)), "runs": runs}


async def _ask_daemon(control: ControlClient, action: str, name: str) -> dict[str, Json]:
    if action == "list":
        found: list[Json] = []
        while True:
            last = found[-1]["id"] if found and isinstance(found[-1], dict) else ""
            page = (await control.get(f"/api/schedules?limit={_PAGE}&after={last}"))["schedules"]
            if not isinstance(page, list) or not page:
                return {"schedules": found}
            found += page
    path = f"/api/schedules/{name}"
    match action:
        case Action.PAUSE | Action.RESUME:
            return {"schedule": await control.patch(path, {"paused": action == Action.PAUSE})}
        case Action.RUN:
            return {"schedule": await control.post(f"{path}/run")}
        case Action.DELETE:
            return {"schedule": await control.delete(path)}
        case _:
            return {"schedule": await control.get(path), "runs": (await control.get(f"{path}/runs"))["runs"]}


def _plain(value: object) -> Json:
    plain: Json = msgspec.to_builtins(value)
    return plain


def _table(schedules: Sequence[t.ScheduleInfo]) -> str:
    if not schedules:
        return "There are no schedules. People make them with /schedule add, and the configuration with [[schedules]]."
    rows = [("id", "chat", "state", "next", "when", "prompt")]
    for each in schedules:
        state = f"{each.state}, {count(each.failures, 'failure')}" if each.failures else each.state
        due = local_time(each.next_at) if each.next_at else "-"
        rows.append((each.id, each.chat, state, due, each.when, excerpt(each.prompt, _WIDTH) or "-"))
    return draw_table(rows)


def _details(info: t.ScheduleInfo, runs: Sequence[t.ScheduleRunInfo]) -> str:
    lines = [
        f"{info.name or info.id}: {info.when}, {info.state}",
        f"  chat {info.chat} (number {info.number}), made by {info.made_by}",
        f"  next {local_time(info.next_at) if info.next_at else '-'}",
    ]
    lines += [f"  note: {info.note}"] if info.note else []
    lines += [f"  prompt: {info.prompt}"] if info.prompt else []
    lines += ["Runs, newest first" if runs else "It has not run yet."]
    for run in runs:
        session = f", session {run.session}" if run.session else ""
        times = f", {run.times} times" if run.times > 1 else ""
        note = f": {excerpt(run.note, _WIDTH)}" if run.note else ""
        lines.append(f"  {local_time(run.started_at)}  {run.state}{times}{session}, {run.tokens} tokens{note}")
    return "\n".join(lines)
