"""`gatehouse spool`: lists waiting and failed messages, and retries replies that could not be delivered."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from config import Settings
from gateway.admin.client import ControlClient, is_running
from gateway.admin.routes import describe_spool, retry_dead_replies
from gateway.cli.common import EXIT_OK, command_parser, load_settings
from gateway.conversation import Json
from gateway.data_dir import DataDirLock
from gateway.storage import open_storage
from gateway.text import printable


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    description = "List messages that wait for an answer or delivery, and those that failed."
    parser = command_parser("spool", description, config)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("action", nargs="?", choices=("list", "retry"), default="list", help="list (default) or retry")
    parser.add_argument(
        "key", metavar="KEY", nargs="?", help="retry: the reply to send again (default: all that failed)"
    )
    options = parser.parse_args(arguments)
    settings = load_settings(options.config).settings
    answer = asyncio.run(list_spool(settings) if options.action == "list" else _retry(settings, options.key))
    if options.json:
        print(json.dumps(answer, indent=2))
        return EXIT_OK
    if "revived" in answer:
        print(f"Replies to send again: {len(_rows(answer['revived']))}.")
        return EXIT_OK
    for name in ("inbox", "outbox"):
        counts = answer[name]
        states = counts.items() if isinstance(counts, dict) else ()
        print(f"{name}: {', '.join(f'{number} {state}' for state, number in states) or 'empty'}")
    failed = [("failed", row["turn"], row) for row in _rows(answer["set_aside"]) if isinstance(row, dict)]
    undelivered = [(row["state"], row["key"], row) for row in _rows(answer["undelivered"]) if isinstance(row, dict)]
    for state, name_of_row, row in [*failed, *undelivered]:
        line = f"{state:<10} {name_of_row}  {row['channel']} {row['chat']}: {row['text']} ({row['reason']})"
        print(printable(line))
    for key in _rows(answer["unreadable"]):
        print(printable(f"unreadable {key}  written by another version of Gatehouse"))
    return EXIT_OK


async def list_spool(settings: Settings) -> dict[str, Json]:
    """Return the contents of the spool, from the running daemon or from its storage under the daemon's lock."""
    directory = settings.gateway.data_dir
    if await asyncio.to_thread(is_running, directory):
        async with ControlClient(directory) as control:
            return await control.get("/spool")
    with DataDirLock(directory):
        async with open_storage(settings) as (spool, _):
            return await describe_spool(spool)


async def _retry(settings: Settings, key: str | None) -> dict[str, Json]:
    directory = settings.gateway.data_dir
    if await asyncio.to_thread(is_running, directory):
        async with ControlClient(directory) as control:
            return await control.post("/spool/retry", {"key": key})
    with DataDirLock(directory):
        async with open_storage(settings) as (spool, _):
            return {"revived": [row.key for row in await retry_dead_replies(spool, key)]}


def _rows(rows: Json) -> list[Json]:
    return rows if isinstance(rows, list) else []
