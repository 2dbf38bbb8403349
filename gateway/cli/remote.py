"""Commands that send one request to the running gateway: `gatehouse link`, `reload` and `log-level`."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from config import LogLevel
from gateway.admin.client import ControlClient
from gateway.cli.common import EXIT_OK, command_parser, load_data_dir


def ask_daemon(config: Path | None, ask: Callable[[ControlClient], Awaitable[int]]) -> int:
    """Connect to the gateway that this configuration belongs to, and return what `ask` returns."""
    directory = load_data_dir(config)

    async def connect() -> int:
        async with ControlClient(directory) as control:
            return await ask(control)

    return asyncio.run(connect())


def link(arguments: Sequence[str], *, config: Path | None) -> int:
    description = "Print a link that signs one browser in to the chat page. It works once, for one hour."
    options = command_parser("link", description, config).parse_args(arguments)

    async def print_link(control: ControlClient) -> int:
        print((await control.post("/auth/link"))["url"])
        return EXIT_OK

    return ask_daemon(options.config, print_link)


def reload(arguments: Sequence[str], *, config: Path | None) -> int:
    description = "Make the running gateway reload its configuration."
    options = command_parser("reload", description, config).parse_args(arguments)
    return ask_daemon(options.config, request_reload)


async def request_reload(control: ControlClient) -> int:
    """Make the gateway reload its configuration, and print which keys it applied."""
    answer = await control.post("/reload")
    applied, restart_needed = answer.get("applied"), answer.get("restart_needed")
    if isinstance(applied, list) and applied:
        print(f"Applied: {', '.join(map(str, applied))}.")
    if isinstance(restart_needed, list) and restart_needed:
        print(f"Not applied until you restart the gateway: {', '.join(map(str, restart_needed))}.")
    if not applied and not restart_needed:
        print("Configuration reloaded. Nothing has changed.")
    return EXIT_OK


def log_level(arguments: Sequence[str], *, config: Path | None) -> int:
    description = "Change the running gateway's log level until the next reload or restart."
    parser = command_parser("log-level", description, config)
    parser.add_argument("level", choices=[level.value for level in LogLevel], help="lowest level to log")
    options = parser.parse_args(arguments)

    async def change_level(control: ControlClient) -> int:
        await control.post("/log-level", {"level": options.level})
        print(f"The log level is now {options.level}. A reload or restart resets it to `gateway.log_level`.")
        return EXIT_OK

    return ask_daemon(options.config, change_level)
