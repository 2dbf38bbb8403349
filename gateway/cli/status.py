"""`gatehouse status`: how the running daemon is doing."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from gateway.cli.asking import ask_daemon, parser
from gateway.cli.exits import EXIT_FAILED, EXIT_OK
from gateway.control import Control

__all__ = ["main"]


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    described = parser("status", "Show how the running gateway is doing; exit 1 when it is not ready.", config)
    described.add_argument("--json", action="store_true", help="print the facts as JSON")
    options = described.parse_args(arguments)
    return ask_daemon(options.config, partial(_print_status, as_json=options.json))


async def _print_status(control: Control, *, as_json: bool) -> int:
    status = await control.get("/status")
    print(json.dumps(status, indent=2) if as_json else status["sentence"])
    return EXIT_OK if status["ready"] else EXIT_FAILED
