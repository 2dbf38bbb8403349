"""What the commands that talk to a running daemon have in common."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from config import ConfigError
from gateway.cli.exits import EXIT_CONFIG, EXIT_FAILED, complain
from gateway.cli.settings import load_settings
from gateway.cli.usage import parser
from gateway.control import Control, NotRunning
from gateway.errors import Refused

__all__ = ["ask_daemon", "parser"]


def ask_daemon(config: Path | None, ask: Callable[[Control], Awaitable[int]]) -> int:
    """Run `ask` with the daemon of this configuration, and turn what stands in the way into one sentence."""
    try:
        # The daemon has its secrets from its own environment, or from systemd, and this shell may not have them.
        directory = load_settings(config, resolves=False).settings.gateway.data_dir
        return asyncio.run(_ask(directory, ask))
    except ConfigError as mistakes:
        return complain(mistakes, EXIT_CONFIG)
    except (NotRunning, Refused) as trouble:
        return complain(trouble, EXIT_FAILED)


async def _ask(directory: Path, ask: Callable[[Control], Awaitable[int]]) -> int:
    async with Control(directory) as control:
        return await ask(control)
