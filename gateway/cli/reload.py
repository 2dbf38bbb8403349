"""`gatehouse reload`: let the running daemon read its configuration again, and say what became of it."""

from collections.abc import Sequence
from pathlib import Path

from gateway.cli.asking import ask_daemon, parser
from gateway.cli.exits import EXIT_OK
from gateway.control import Control

__all__ = ["main"]


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    options = parser("reload", "Let the running gateway read its configuration again.", config).parse_args(arguments)
    return ask_daemon(options.config, _reload)


async def _reload(control: Control) -> int:
    await control.post("/reload")
    print("Reloaded: the new settings are in force. What needs a restart, if anything, is in the log.")
    return EXIT_OK
