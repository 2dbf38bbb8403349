"""`gatehouse pair`: lists people who asked for access, and approves, denies or revokes it."""

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from config import Settings
from gateway.access.guests import FACTS, GuestBook
from gateway.access.pairing import Pairing
from gateway.access.rules import Live
from gateway.admin.client import ControlClient, is_running
from gateway.admin.routes import PAIRING_ACTIONS, decide_pairing, describe_pairing
from gateway.cli.common import EXIT_OK, command_parser, load_settings, log_to_stderr
from gateway.conversation import Json
from gateway.data_dir import DataDirLock
from gateway.spool import GRANT_FACTS
from gateway.storage import open_storage
from gateway.text import printable
from gateway.turns.grants import GrantBook


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    parser = command_parser("pair", "List people who asked for access to a bot, and decide about them.", config)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--owner", action="store_true", help="with approve: make them an owner")
    parser.add_argument("--role", help="with approve: the role that they get, a table in [roles]; without this, member")
    parser.add_argument(
        "action",
        nargs="?",
        choices=("list", *PAIRING_ACTIONS),
        default="list",
        help="list (default), approve CODE, deny CODE, revoke ID or role ID ROLE",
    )
    parser.add_argument("subject", nargs="?", metavar="CODE|ID", help="the code or ID that the list shows")
    parser.add_argument("new_role", nargs="?", metavar="ROLE", help="with role: the role that they get from now on")
    options = parser.parse_args(arguments)
    if options.action != "list" and not options.subject:
        wanted = "a code" if options.action in {"approve", "deny"} else "an ID"
        parser.error(f"`pair {options.action}` needs {wanted}. `gatehouse pair list` shows it.")
    if options.owner and options.action != "approve":
        parser.error("--owner works only with `approve`.")
    if options.role and (options.action != "approve" or options.owner):
        parser.error("--role works only with `approve`, and without --owner.")
    if bool(options.new_role) != (options.action == "role"):
        parser.error("Write it as `gatehouse pair role ID ROLE`. Other actions take no second argument.")
    settings = load_settings(options.config, resolves=False).settings
    log_to_stderr()
    # Each action reads the fields that it needs.
    fields: dict[str, Json] = {"code": options.subject, "id": options.subject, "is_owner": options.owner}
    answer = asyncio.run(_ask(settings, options.action, {**fields, "role": options.new_role or options.role}))
    if options.json:
        print(json.dumps(answer, indent=2))
        return EXIT_OK
    lines = []
    match answer:
        case {"approved": {"id": who, "name": name, "role": role}}:
            lines = [f"{name or who} ({who}) now has access as {role}, and has been notified."]
        case {"changed": {"id": who, "name": name, "role": role}}:
            lines = [f"{name or who} ({who}) has the role {role} from now on."]
        case {"denied": {"id": who, "name": name}}:
            lines = [f"{name or who} ({who}) was denied and can't request a new code for 24 hours."]
        case {"revoked": {"id": who, "name": name}}:
            lines = [f"{name or who} ({who}) no longer has access and can't request a new code for 24 hours."]
        case {"waiting": [*waiting], "guests": [*guests], "revoked": [*revoked]}:
            lines = ["Waiting for approval:" if waiting else "No one is waiting for approval."]
            lines += (f"{_field(row, 'code')}  {_field(row, 'id')}  {_field(row, 'name')}" for row in waiting)
            lines += ["Approved:"] if guests else []
            lines += (f"{_field(row, 'id')}  {_field(row, 'name')}  {_role(row)}" for row in guests)
            lines += ["Revoked:"] if revoked else []
            lines += (f"{_field(row, 'id')}  {_field(row, 'name')}".rstrip() for row in revoked)
    print(printable("\n".join(lines)))
    return EXIT_OK


async def list_people(settings: Settings) -> list[dict[str, Json]]:
    """Return the approved people. Raises `Refused` or `CannotStart` as the command does."""
    listed = (await _ask(settings, "list", {}))["guests"]
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


async def _ask(settings: Settings, action: str, wanted: dict[str, Json]) -> dict[str, Json]:
    """Ask the running daemon. If none runs, use its spool under its lock."""
    directory = settings.gateway.data_dir
    if await asyncio.to_thread(is_running, directory):
        async with ControlClient(directory) as control:
            if action == "list":
                return await control.get("/pair")
            return await control.post(f"/pair/{action}", wanted)
    with DataDirLock(directory):
        async with open_storage(settings) as (spool, _):
            book, now = GuestBook(), partial(datetime.now, UTC)
            book.read(await spool.facts(FACTS))
            live = Live(settings, book)
            grants = GrantBook(live, now=now)
            grants.read(await spool.facts(GRANT_FACTS))
            pairing = Pairing(book, spool, now=now, also_ends=grants.remove_people)
            if action == "list":
                return describe_pairing(pairing, live)
            return await decide_pairing(pairing, live, action, wanted)


def _role(row: Json) -> str:
    is_missing = isinstance(row, dict) and row.get("role_exists") is False
    return f"{_field(row, 'role')}, which no longer exists" if is_missing else _field(row, "role")


def _field(row: Json, name: str) -> str:
    return str(row.get(name, "")) if isinstance(row, dict) else ""
