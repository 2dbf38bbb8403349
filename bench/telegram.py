"""Measures Telegram, compared with two bare aiogram bots: one calls the model with plain aiohttp, one with the SDK."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from bench.bots import Bot, bare, gatehouse, started
from bench.model_server import served as model_served
from bench.model_server import set_delay
from bench.process import Usage
from bench.table import Row

RUNS = int(os.environ.get("BENCH_RUNS", "10"))
TRIPS = 100
CHATS = 50
EACH = 10
SLOW_MODEL = 0.2
TRIP, TRIP_CPU, RATE, RATE_CPU, SLOW_RATE, START = 1.5, 1.7, 0.65, 1.6, 0.9, 0.6
"""The targets, as ratios to the bot with plain aiohttp."""
MEMORY_MB = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Some messages and their cost. Times are in milliseconds; the counts are per message."""

    took: float
    """The median round trip in one chat; the time of the whole phase for many chats."""
    messages: int
    cpu: float
    switches: float
    iterations: float

    @property
    def rate(self) -> float:
        return self.messages * 1000 / self.took


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    start: float
    memory_mb: float
    one: Phase
    many: Phase
    slow: Phase
    """Many chats, and a model that takes 200 ms."""


def rows() -> Iterator[Row]:
    runs = []
    with model_served() as model, TemporaryDirectory() as home:
        for number in range(RUNS):
            folder = Path(home, str(number))
            folder.mkdir()
            runs.append(asyncio.run(_measured(model, folder)))
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    plain, sdk, ours = ([run[contender] for run in runs] for contender in range(3))
    yield _row("one chat, p50", plain, ours, lambda each: each.one.took, unit=" ms", limit=TRIP)
    yield _row("one chat, CPU per message", plain, ours, lambda each: each.one.cpu, unit=" ms", limit=TRIP_CPU)
    yield _row("one chat, context switches", plain, ours, lambda each: each.one.switches)
    yield _row("one chat, loop iterations", plain, ours, lambda each: each.one.iterations)
    chats = f"{CHATS} chats"
    yield _row(f"{chats}, rate", plain, ours, lambda each: each.many.rate, unit="/s", limit=RATE, more_is_better=True)
    yield _row(f"{chats}, CPU per message", plain, ours, lambda each: each.many.cpu, unit=" ms", limit=RATE_CPU)
    yield _row(f"{chats}, context switches", plain, ours, lambda each: each.many.switches)
    yield _row(f"{chats}, loop iterations", plain, ours, lambda each: each.many.iterations)
    yield _row(
        f"{chats}, model {SLOW_MODEL * 1000:.0f} ms, rate",
        plain,
        ours,
        lambda each: each.slow.rate,
        unit="/s",
        limit=SLOW_RATE,
        more_is_better=True,
    )
    yield _row("start to first answer", plain, ours, lambda each: each.start, unit=" ms", limit=START)
    yield Row(
        what="Telegram: memory, idle",
        measured=f"{median(each.memory_mb for each in ours):.0f} MB",
        baseline=f"bare bot: {median(each.memory_mb for each in plain):.0f} MB",
        target=f"<= {MEMORY_MB} MB",
        is_met=median(each.memory_mb for each in ours) <= MEMORY_MB,
    )
    yield _row("one chat, p50", sdk, ours, lambda each: each.one.took, unit=" ms", bot="bot with SDK")
    yield _row("one chat, CPU per message", sdk, ours, lambda each: each.one.cpu, unit=" ms", bot="bot with SDK")
    yield _row(f"{chats}, CPU per message", sdk, ours, lambda each: each.many.cpu, unit=" ms", bot="bot with SDK")


def _row(
    what: str,
    bare: list[Measured],
    ours: list[Measured],
    value: Callable[[Measured], float],
    *,
    unit: str = "",
    limit: float | None = None,
    more_is_better: bool = False,
    bot: str = "bare bot",
) -> Row:
    """Compare the runs one by one. The target is met if most runs meet it."""
    ratios = [value(our) / value(their) for our, their in zip(ours, bare, strict=True)]
    target, met = "reported", len(ratios)
    if limit is not None:
        met = sum(ratio >= limit if more_is_better else ratio <= limit for ratio in ratios)
        target = f"{'>=' if more_is_better else '<='} {limit}x; met in {met} of {len(ratios)} runs"
    return Row(
        what=f"Telegram: {what}",
        measured=f"{median(map(value, ours)):.1f}{unit}, {median(ratios):.2f}x",
        baseline=f"{bot}: {median(map(value, bare)):.1f}{unit}",
        target=target,
        is_met=met > len(ratios) / 2,
    )


async def _measured(model: str, home: Path) -> tuple[Measured, Measured, Measured]:
    """Measure the bots and Gatehouse in alternation, so that other load on the machine affects all of them equally."""
    async with (
        asyncio.timeout(600),
        started(lambda api: bare(api, f"{model}/plain", "aiohttp"), home) as plain,
        started(lambda api: bare(api, f"{model}/plain", "sdk"), home) as sdk,
        started(lambda api: gatehouse(api, f"{model}/plain", home), home) as ours,
    ):
        bots = (plain, sdk, ours)
        await asyncio.sleep(2)
        idle = [bot.process.memory_mb() for bot in bots]
        one = await _one_chat(bots)
        many = [await _many_chats(bot) for bot in bots]
        await set_delay(model, SLOW_MODEL)
        slow = [await _many_chats(bot) for bot in bots]
        await set_delay(model, 0)
        first, second, third = (
            Measured(start=bot.start, memory_mb=memory, one=phases[0], many=phases[1], slow=phases[2])
            for bot, memory, *phases in zip(bots, idle, one, many, slow, strict=True)
        )
    return first, second, third


async def _one_chat(bots: tuple[Bot, ...]) -> list[Phase]:
    """Ask each bot in turn, one message at a time."""
    took: list[list[float]] = [[] for _ in bots]
    before = [bot.process.usage() for bot in bots]
    for _ in range(TRIPS):
        for bot, times in zip(bots, took, strict=True):
            began = perf_counter()
            await bot.api.ask(1)
            times.append((perf_counter() - began) * 1000)
    return [
        await _phase(bot, earlier, took=median(times), messages=TRIPS)
        for bot, earlier, times in zip(bots, before, took, strict=True)
    ]


async def _many_chats(bot: Bot) -> Phase:
    async def talk(chat: int) -> None:
        for _ in range(EACH):
            await bot.api.ask(chat)

    before, began = bot.process.usage(), perf_counter()
    async with asyncio.TaskGroup() as people:
        for chat in range(2, CHATS + 2):
            people.create_task(talk(chat), name=f"chat:{chat}")
    return await _phase(bot, before, took=(perf_counter() - began) * 1000, messages=CHATS * EACH)


async def _phase(bot: Bot, before: Usage, *, took: float, messages: int) -> Phase:
    await asyncio.sleep(0.5)  # The work after an answer is part of its cost.
    used = bot.process.usage() - before
    return Phase(
        took=took,
        messages=messages,
        cpu=used.cpu_ms / messages,
        switches=used.switches / messages,
        iterations=used.iterations / messages,
    )
