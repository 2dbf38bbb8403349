"""`gatehouse spool`: what waits, what was set aside, and another try for replies that were given up."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from config import ConfigError
from gateway.cli.asking import parser
from gateway.cli.exits import EXIT_CONFIG, EXIT_FAILED, complain
from gateway.cli.settings import load_settings
from gateway.control import Control, NotRunning, is_running
from gateway.dialogue import Json
from gateway.errors import CannotStart, Refused
from gateway.lock import DataDirLock
from gateway.spool import Spool
from gateway.spool_listing import as_json, revive
from gateway.text import printable

__all__ = ["listing", "main"]


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    described = parser("spool", "Show what waits to be answered or delivered, and what was set aside.", config)
    described.add_argument("--json", action="store_true", help="print it as JSON")
    described.add_argument(
        "action", nargs="?", choices=("list", "retry"), default="list", help="list (default) or retry"
    )
    described.add_argument("key", nargs="?", help="the reply to send again; without it, all that were given up")
    options = described.parse_args(arguments)
    try:
        directory = load_settings(options.config, resolves=False).settings.gateway.data_dir
        answer = asyncio.run(_ask(directory, options.action, options.key))
    except ConfigError as mistakes:
        return complain(mistakes, EXIT_CONFIG)
    except CannotStart as trouble:
        return complain(trouble, EXIT_CONFIG)
    except (NotRunning, Refused) as trouble:
        return complain(trouble, EXIT_FAILED)
    print(json.dumps(answer, indent=2) if options.json else printable("\n".join(_lines(answer))))
    return 0


async def _ask(directory: Path, action: str, key: str | None) -> dict[str, Json]:
    """Ask the running daemon; without one, look into its spool, under its lock."""
    if await asyncio.to_thread(is_running, directory):
        async with Control(directory) as control:
            return await (control.get("/spool") if action == "list" else control.post("/spool/retry", {"key": key}))
    with DataDirLock(directory):
        async with await Spool.open(directory) as spool:
            if action == "list":
                return await as_json(spool)
            return {"revived": [row.key for row in await revive(spool, key)]}


async def listing(directory: Path) -> dict[str, Json]:
    """Tell what `gatehouse spool` tells, from wherever it can be told."""
    return await _ask(directory, "list", None)


def _lines(answer: dict[str, Json]) -> list[str]:
    if "revived" in answer:
        revived = answer["revived"]
        return [f"To be sent again: {len(revived) if isinstance(revived, list) else 0}."]
    return [
        f"inbox: {_counts(answer['inbox'])}",
        f"outbox: {_counts(answer['outbox'])}",
        *(_line("set aside", row["turn"], row) for row in _rows(answer["set_aside"])),
        *(_line(row["state"], row["key"], row) for row in _rows(answer["undelivered"])),
        *(f"unreadable {name}  only another version of Gatehouse can read it" for name in _names(answer["unreadable"])),
    ]


def _line(state: Json, name: Json, row: dict[str, Json]) -> str:
    return f"{state:<10} {name}  {row['channel']} {row['chat']}: {row['text']} ({row['reason']})"


def _rows(rows: Json) -> list[dict[str, Json]]:
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _names(names: Json) -> list[Json]:
    return names if isinstance(names, list) else []


def _counts(counts: Json) -> str:
    named = counts.items() if isinstance(counts, dict) else ()
    return ", ".join(f"{count} {state}" for state, count in named) or "empty"
