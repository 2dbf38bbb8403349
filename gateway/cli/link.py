"""`gatehouse link`: a new single-use link to the chat page of the running daemon."""

from collections.abc import Sequence
from pathlib import Path

from gateway.cli.asking import ask_daemon, parser
from gateway.cli.exits import EXIT_OK
from gateway.control import Control

__all__ = ["main"]


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    options = parser("link", "Print a link that lets one browser in, once, within the hour.", config).parse_args(
        arguments
    )
    return ask_daemon(options.config, _print_link)


async def _print_link(control: Control) -> int:
    answer = await control.post("/auth/link")
    print(answer["url"])
    return EXIT_OK
