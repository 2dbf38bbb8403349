"""`gatehouse status`: how the running daemon is doing, once or as a live screen."""

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from gateway.cli.asking import ask_daemon, parser
from gateway.cli.exits import EXIT_FAILED, EXIT_OK
from gateway.cli.status_screen import screen
from gateway.cli.status_watch import read_facts, watch
from gateway.control import Control

__all__ = ["main"]

_SHORTEST = 0.2
_LONGEST = 3600.0


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    described = parser("status", "Show how the running gateway is doing; exit 1 when it is not ready.", config)
    described.add_argument("--json", action="store_true", help="print the facts as JSON, one line each with --watch")
    described.add_argument("--watch", action="store_true", help="show it again and again, until Ctrl-C")
    described.add_argument(
        "--interval", type=_seconds, default=2.0, metavar="SECONDS", help="how often with --watch (2)"
    )
    options = described.parse_args(arguments)
    if options.watch:
        return watch(options.config, every=options.interval, as_json=options.json)
    return ask_daemon(options.config, partial(_print_status, as_json=options.json))


async def _print_status(control: Control, *, as_json: bool) -> int:
    if as_json:
        status = await control.get("/status")
        print(json.dumps(status, indent=2))
        return EXIT_OK if status["ready"] else EXIT_FAILED
    facts = await read_facts(control)
    print("\n".join(screen(facts)))
    return EXIT_OK if facts.ready else EXIT_FAILED


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not _SHORTEST <= seconds <= _LONGEST:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds between {_SHORTEST:g} and {_LONGEST:g}")
    return seconds
