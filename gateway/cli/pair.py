"""`gatehouse pair`: who waits to be let in, and the owner's decision, with the daemon running or not."""

import argparse
import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from config import ConfigError
from gateway.cli.asking import parser
from gateway.cli.exits import EXIT_CONFIG, EXIT_FAILED, complain
from gateway.cli.settings import load_settings
from gateway.control import Control, NotRunning, is_running
from gateway.dialogue import Json
from gateway.errors import CannotStart, Refused
from gateway.lock import DataDirLock
from gateway.pairing import Pairing
from gateway.pairing.guests import FACTS, GuestBook
from gateway.pairing.listing import ACTIONS, listing
from gateway.spool import Spool
from gateway.text import printable

__all__ = ["main"]


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    described = parser("pair", "Show who waits to be let in, and decide about it.", config)
    described.add_argument("--json", action="store_true", help="print it as JSON")
    described.add_argument("--owner", action="store_true", help="with approve: let them in as an owner")
    described.add_argument(
        "action",
        nargs="?",
        choices=("list", *ACTIONS),
        default="list",
        help="list (default), approve CODE, deny CODE or revoke ID",
    )
    described.add_argument("subject", nargs="?", metavar="CODE|ID", help="whom it is about, as the list shows it")
    options = described.parse_args(arguments)
    if options.action != "list" and not options.subject:
        described.error(f"`pair {options.action}` needs to know whom it is about; `gatehouse pair list` shows that.")
    if options.owner and options.action != "approve":
        described.error("--owner goes with `approve` only.")
    try:
        directory = load_settings(options.config, resolves=False).settings.gateway.data_dir
        answer = asyncio.run(_ask(directory, options))
    except (ConfigError, CannotStart) as trouble:
        return complain(trouble, EXIT_CONFIG)
    except (NotRunning, Refused) as trouble:
        return complain(trouble, EXIT_FAILED)
    print(json.dumps(answer, indent=2) if options.json else printable("\n".join(_lines(answer))))
    return 0


async def _ask(directory: Path, options: argparse.Namespace) -> dict[str, Json]:
    """Ask the running daemon; without one, look into its spool, under its lock."""
    wanted: dict[str, Json] = {"code": options.subject, "id": options.subject, "is_owner": options.owner}
    if await asyncio.to_thread(is_running, directory):
        async with Control(directory) as control:
            if options.action == "list":
                return await control.get("/pair")
            return await control.post(f"/pair/{options.action}", wanted)
    with DataDirLock(directory):
        async with await Spool.open(directory) as spool:
            book = GuestBook()
            book.read(await spool.facts(FACTS))
            pairing = Pairing(book, spool, now=lambda: datetime.now(UTC))
            return listing(pairing) if options.action == "list" else await ACTIONS[options.action](pairing, wanted)


def _lines(answer: dict[str, Json]) -> list[str]:
    match answer:
        case {"approved": {"id": who, "name": name, "role": role}}:
            return [f"{name or who} ({who}) may talk now, as {role}, and is told so."]
        case {"denied": {"id": who, "name": name}}:
            return [f"{name or who} ({who}) stays out, and gets no other code for a day."]
        case {"revoked": {"id": who, "name": name}}:
            return [f"{name or who} ({who}) may not talk any more."]
        case {"waiting": [*waiting], "guests": [*guests]}:
            rows = [f"{_field(row, 'code')}  {_field(row, 'id')}  {_field(row, 'name')}" for row in waiting]
            let_in = [f"{_field(row, 'id')}  {_field(row, 'name')}  {_field(row, 'role')}" for row in guests]
            asked = ["Waiting:", *rows] if rows else ["Nobody waits to be let in."]
            return [*asked, *(["Let in:", *let_in] if let_in else [])]
    return []


def _field(row: Json, name: str) -> str:
    return str(row.get(name, "")) if isinstance(row, dict) else ""
