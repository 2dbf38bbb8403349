"""Starts Gatehouse and bare aiogram bots as processes that talk to the fake Bot API."""

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from bench.bot_api import TOKEN, BotApi, served
from bench.daemon import GATEHOUSE, free_port
from bench.process import Process, run

CONFIG = """
[gateway]
data_dir = "{home}/data"
[http]
port = {port}
[channels.telegram]
token = "{token}"
api_base = "{api}"
dm_policy = "open"
rate_limit = 0
[agents.main]
provider = "local"
model = "m"
[providers.local]
kind = "openai"
base_url = "{model}"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bot:
    api: BotApi
    process: Process
    start: float
    """Milliseconds until its first answer."""


def bare(api: str, model: str, client: str) -> list[str]:
    """Return the command of a bare bot. `client` says what calls the model: "sdk" or "aiohttp"."""
    return [sys.executable, str(Path(__file__).with_name("bare_bot.py")), api, model, TOKEN, client]


def gatehouse(api: str, model: str, home: Path) -> list[str]:
    """Return the command of a Gatehouse whose files are in `home`. Writes its configuration there."""
    config = home / "gatehouse.toml"
    config.write_text(CONFIG.format(home=home, api=api, model=model, token=TOKEN, port=free_port()))
    config.chmod(0o600)
    return [GATEHOUSE, "--config", str(config), "run"]


@asynccontextmanager
async def started(command: Callable[[str], list[str]], home: Path) -> AsyncIterator[Bot]:
    """Run a bot. It has answered one message when the block begins."""
    async with served() as api:
        began = perf_counter()
        with run(command(api.url), home=home) as process:
            await api.ask(1)
            yield Bot(api=api, process=process, start=(perf_counter() - began) * 1000)
