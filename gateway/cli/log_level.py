"""`gatehouse log-level`: hear more or less of a running daemon, until its configuration is read again."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from config import LogLevel
from gateway.cli.asking import ask_daemon, parser
from gateway.cli.exits import EXIT_OK
from gateway.control import Control

__all__ = ["main"]


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    described = parser("log-level", "Change what the running gateway logs, until it reads its settings again.", config)
    described.add_argument("level", choices=[level.value for level in LogLevel], help="the least important lines")
    options = described.parse_args(arguments)
    return ask_daemon(options.config, partial(_change, level=options.level))


async def _change(control: Control, *, level: str) -> int:
    await control.post("/log-level", {"level": level})
    print(f"The log level is {level} now. A reload or a restart goes back to `gateway.log_level`.")
    return EXIT_OK
