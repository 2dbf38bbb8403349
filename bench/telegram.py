"""Measures Telegram, compared with a bare aiogram bot that makes the same model call with the same SDK."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from bench.bot_api import TOKEN, BotApi, served
from bench.daemon import GATEHOUSE, free_port, memory_mb
from bench.model_server import served as model_served
from bench.table import Row

TRIPS = 200
CHATS = 50
EACH = 20
LIMITS = {"trip": 1.5, "rate": 0.6, "cpu": 1.8, "memory_mb": 40.0, "start": 1.2}

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

LAG = """
import asyncio, time
def load():
    from channels.telegram.aiogram_loading import load_aiogram
    load_aiogram()
    import channels.telegram.connection
async def main():
    lags = []
    async def watch():
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.005)
            lags.append(time.perf_counter() - began - 0.005)
    watching = asyncio.create_task(watch())
    await asyncio.sleep(0.05)
    began = time.perf_counter()
    await asyncio.to_thread(load)
    took = time.perf_counter() - began
    watching.cancel()
    print(took, max(lags), sorted(lags)[len(lags) * 99 // 100])
asyncio.run(main())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Times are in milliseconds. `rate` is in messages per second."""

    start: float
    memory_mb: float
    trip: float
    rate: float
    cpu: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bot:
    api: BotApi
    pid: int
    start: float


def rows() -> Iterator[Row]:
    with model_served() as model, TemporaryDirectory() as home:
        bare, ours = asyncio.run(_measured(f"{model}/plain", Path(home)))
    yield _ratio("Telegram round trip, one chat, p50", ours.trip, bare.trip, "ms", LIMITS["trip"])
    yield Row(
        what=f"Telegram, {CHATS} chats x {EACH}, closed loop",
        measured=f"{ours.rate:.0f}/s, {ours.rate / bare.rate:.2f}x",
        baseline=f"bare bot: {bare.rate:.0f}/s",
        target=f">= {LIMITS['rate']}x",
        is_met=ours.rate >= LIMITS["rate"] * bare.rate,
    )
    yield _ratio("CPU per message", ours.cpu, bare.cpu, "ms", LIMITS["cpu"])
    yield Row(
        what="memory, Telegram enabled, idle",
        measured=f"{ours.memory_mb:.0f} MB",
        baseline=f"bare bot: {bare.memory_mb:.0f} MB",
        target=f"<= {LIMITS['memory_mb']:.0f} MB more",
        is_met=ours.memory_mb <= bare.memory_mb + LIMITS["memory_mb"],
    )
    yield _ratio("start to first answer on Telegram", ours.start, bare.start, "ms", LIMITS["start"])
    yield _lag()


def _ratio(what: str, ours: float, bare: float, unit: str, limit: float) -> Row:
    return Row(
        what=what,
        measured=f"{ours:.1f} {unit}, {ours / bare:.2f}x",
        baseline=f"bare bot: {bare:.1f} {unit}",
        target=f"<= {limit}x",
        is_met=ours <= limit * bare,
    )


def _lag() -> Row:
    """Report how long the import of aiogram, in a thread, blocks the event loop. It has no target."""
    done = subprocess.run([sys.executable, "-c", LAG], check=True, capture_output=True, text=True)
    took, worst, high = (float(part) * 1000 for part in done.stdout.split())
    return Row(
        what="event-loop lag while aiogram is imported",
        measured=f"p99 {high:.0f} ms, worst {worst:.0f} ms",
        baseline=f"the import: {took:.0f} ms",
        target="reported",
        is_met=True,
    )


def _bare(api: str, model: str) -> list[str]:
    return [sys.executable, "-m", "bench.bare_bot", api, model, TOKEN]


def _gatehouse(api: str, model: str, home: Path, *, port: int) -> list[str]:
    config = home / "gatehouse.toml"
    config.write_text(CONFIG.format(home=home, api=api, model=model, token=TOKEN, port=port))
    config.chmod(0o600)
    return [GATEHOUSE, "--config", str(config), "run"]


async def _measured(model: str, home: Path) -> tuple[Measured, Measured]:
    """Measure the bare bot and Gatehouse side by side, so that other load on the machine affects both equally."""
    port = free_port()
    async with (
        asyncio.timeout(600),
        _started(lambda api: _bare(api, model), home) as bare,
        _started(lambda api: _gatehouse(api, model, home, port=port), home) as ours,
    ):
        await asyncio.sleep(2)
        idle = [memory_mb(bot.pid) for bot in (bare, ours)]
        trips = await _trips(bare.api, ours.api)
        first, second = [await _loaded(*each) for each in zip((bare, ours), idle, trips, strict=True)]
    return first, second


async def _loaded(bot: _Bot, memory: float, trip: float) -> Measured:
    """Measure one bot under load, and return all its figures."""
    rate, cpu = await _load(bot.api, bot.pid)
    return Measured(start=bot.start, memory_mb=memory, trip=trip, rate=rate, cpu=cpu)


@asynccontextmanager
async def _started(command: Callable[[str], list[str]], home: Path) -> AsyncIterator[_Bot]:
    """Run a bot. It has answered one message when the block begins."""
    async with served() as api:
        began = perf_counter()
        process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
            command(api.url),
            env={**os.environ, "HOME": str(home)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            await api.ask(1)
            yield _Bot(api=api, pid=process.pid, start=(perf_counter() - began) * 1000)
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait)


async def _trips(*apis: BotApi) -> list[float]:
    """Return the median round trip of each bot. The bots take turns."""
    took: list[list[float]] = [[] for _ in apis]
    for _ in range(TRIPS):
        for api, times in zip(apis, took, strict=True):
            began = perf_counter()
            await api.ask(1)
            times.append((perf_counter() - began) * 1000)
    return [median(times[TRIPS // 10 :]) for times in took]


async def _load(api: BotApi, pid: int) -> tuple[float, float]:
    """Return the messages per second, and the CPU milliseconds of each."""

    async def talk(chat: int) -> None:
        for _ in range(EACH):
            await api.ask(chat)

    spent, began = _cpu_ms(pid), perf_counter()
    async with asyncio.TaskGroup() as people:
        for chat in range(2, CHATS + 2):
            people.create_task(talk(chat), name=f"chat:{chat}")
    took = perf_counter() - began
    await asyncio.sleep(1)  # The writes after an answer are part of its cost.
    return CHATS * EACH / took, (_cpu_ms(pid) - spent) / (CHATS * EACH)


def _cpu_ms(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")
