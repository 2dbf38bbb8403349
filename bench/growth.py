"""Measures how the cost of a message grows with the number of chats and with the length of a session.

Each number of chats has its own `gatehouse run` on Telegram with a fake Bot API, as in `bench/telegram.py`. All sizes
are measured in alternation. The chats have a full history, or a short one. All requests to the model have one size:
nothing is summarised, and the model sees as many messages as each chat has had before.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import cycle, islice
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from time import perf_counter

import structlog

from bench.bots import Bot, gatehouse, started
from bench.model_server import served as model_served
from bench.plot import Line, Panel, draw
from bench.table import Row
from config import SessionSettings
from gateway.contract import Address, PeerKind
from gateway.sessions import SessionManager
from gateway.sessions import entries as e

CHATS = (1, 50, 500, 5_000)
IN_FLIGHT = 50
"""Messages in flight, spread over the chats. A single chat has one."""
FULL, SHORT = 50, 4
"""Messages that each chat has at the start. The model sees as many."""
LENGTHS = {10: 20, 1_000: 20, 100_000: 1}
"""Messages of a session, and how many such sessions take turns, so that short ones stay short."""
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "6"))
BLOCK = 250
TRIPS = 20
LIMIT = 1.3
PLOT = Path(os.environ.get("BENCH_GROWTH_PLOT", "docs/images/growth.svg"))
"""Where the plot is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A gateway, and people who talk to it."""

    bot: Bot
    people: Sequence[Iterator[int]]
    """The chats of each person, in turn. A person waits for an answer before the next message."""
    trips: list[float] = field(default_factory=list)
    """Milliseconds from a message to its answer."""
    seconds: list[float] = field(default_factory=list)
    """Per message; one figure for each block of messages."""
    cpu: list[float] = field(default_factory=list)
    """Milliseconds per message; one figure for each block of messages. Their mean counts the flushes as well."""

    async def drive(self, messages: int) -> None:
        """Send a block of messages. Everyone sends the same number."""
        each = max(messages // len(self.people), 1)

        async def talk(chats: Iterator[int]) -> None:
            for chat in islice(chats, each):
                began = perf_counter()
                await self.bot.api.ask(chat)
                self.trips.append((perf_counter() - began) * 1000)

        before, began = self.bot.process.usage(), perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for number, chats in enumerate(self.people):
                tasks.create_task(talk(chats), name=f"person:{number}")
        sent = each * len(self.people)
        self.seconds.append((perf_counter() - began) / sent)
        await asyncio.sleep(0.3)  # The work after an answer is part of its cost.
        self.cpu.append((self.bot.process.usage() - before).cpu_ms / sent)

    def reset(self) -> None:
        for figures in (self.trips, self.seconds, self.cpu):
            figures.clear()

    @property
    def p50(self) -> float:
        """Milliseconds of a round trip for each message that is in flight at the same time."""
        return median(self.trips) / len(self.people)

    @property
    def rate(self) -> float:
        return 1 / median(self.seconds)


def rows() -> Iterator[Row]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with model_served() as model:
        chats, memory = asyncio.run(_chats(model, CHATS, FULL))
        short_chats, short_memory = asyncio.run(_chats(model, (50, 5_000), SHORT))
        sessions = asyncio.run(_lengths(model))
    for number, load in chats.items():
        yield Row(
            what=f"growth: {_count(number, 'chat')}",
            measured=f"{load.rate:.0f}/s, p50 {median(load.trips):.1f} ms, CPU {fmean(load.cpu):.2f} ms",
            baseline=f"{_count(len(load.people), 'message')} in flight",
            target="reported",
            is_met=True,
        )
    for history, loads, memory_mb in ((FULL, chats, memory), (SHORT, short_chats, short_memory)):
        few, many = loads[50], loads[5_000]
        which = f"5,000 chats, {history} messages each"
        yield _flat(f"CPU per message, {which}", fmean(many.cpu), fmean(few.cpu), "50 chats")
        yield _flat(f"p50 / messages in flight, {which}", many.p50, few.p50, "50 chats")
        yield Row(
            what=f"growth: memory per idle chat, {history} messages each",
            measured=f"{(memory_mb[5_000] - memory_mb[50]) / 4_950 * 1024:.1f} kB",
            baseline=f"50 chats: {memory_mb[50]:.0f} MB, 5,000 chats: {memory_mb[5_000]:.0f} MB",
            target="reported",
            is_met=True,
        )
    for length, load in sessions.items():
        yield Row(
            what=f"growth: one more message after {length:,}",
            measured=f"p50 {median(load.trips):.1f} ms, CPU {fmean(load.cpu):.2f} ms",
            baseline="1 message in flight",
            target="reported",
            is_met=True,
        )
    short, long = sessions[10], sessions[100_000]
    yield _flat("CPU per message, session of 100,000", fmean(long.cpu), fmean(short.cpu), "session of 10")
    yield _flat("p50, session of 100,000", long.p50, short.p50, "session of 10")
    PLOT.parent.mkdir(parents=True, exist_ok=True)
    PLOT.write_text(_plot(chats, short_chats, sessions))


def _flat(what: str, grown: float, base: float, small: str) -> Row:
    return Row(
        what=f"growth: {what}",
        measured=f"{grown:.2f} ms, {grown / base:.2f}x",
        baseline=f"{small}: {base:.2f} ms",
        target=f"<= {LIMIT}x",
        is_met=grown <= LIMIT * base,
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _plot(chats: dict[int, Load], short_chats: dict[int, Load], sessions: dict[int, Load]) -> str:
    def cpu(name: str, loads: dict[int, Load]) -> Line:
        return Line(name=name, points=[(size, fmean(load.cpu)) for size, load in loads.items()])

    def p50(name: str, loads: dict[int, Load]) -> Line:
        return Line(name=name, points=[(size, load.p50) for size, load in loads.items()])

    return draw(
        "The cost of one message",
        [
            Panel(
                title="by the number of chats",
                x_label="chats (log scale)",
                y_label="milliseconds",
                lines=[
                    cpu(f"CPU time, {FULL} messages in each chat", chats),
                    p50(f"p50 / messages in flight, {FULL} messages in each chat", chats),
                    cpu(f"CPU time, {SHORT} messages in each chat", short_chats),
                ],
            ),
            Panel(
                title="by the length of the session",
                x_label="messages in the session (log scale)",
                y_label="milliseconds",
                lines=[cpu("CPU time", sessions), p50("p50 of a round trip", sessions)],
            ),
        ],
    )


async def _chats(model: str, sizes: Sequence[int], history: int) -> tuple[dict[int, Load], dict[int, float]]:
    """Return the load of each number of chats, and the memory after each chat had one message."""
    async with AsyncExitStack() as stack:
        loads, memory = {}, {}
        for number in sizes:
            sessions = dict.fromkeys(range(2, number + 2), history)
            bot = await stack.enter_async_context(_gateway(model, sessions, seen=history))
            people = min(number, IN_FLIGHT)
            loads[number] = Load(bot=bot, people=[cycle(range(2, number + 2)[at::people]) for at in range(people)])
        for number, load in loads.items():
            await load.drive(max(number, BLOCK))
            load.reset()
        await asyncio.sleep(3)
        for number, load in loads.items():
            memory[number] = load.bot.process.memory_mb()
        for _ in range(ROUNDS):
            for load in loads.values():
                await load.drive(BLOCK)
    return loads, memory


async def _lengths(model: str) -> dict[int, Load]:
    """Return the load of each length of a session."""
    lengths = [length for length, sessions in LENGTHS.items() for _ in range(sessions)]
    chats = dict(enumerate(lengths, 2))
    async with _gateway(model, chats, seen=FULL) as bot:
        loads = {
            length: Load(bot=bot, people=[cycle([chat for chat, its in chats.items() if its == length])])
            for length in LENGTHS
        }
        for load in loads.values():
            await load.drive(TRIPS)
            load.reset()
        for _ in range(ROUNDS):
            for load in loads.values():
                await load.drive(TRIPS)
    return loads


@asynccontextmanager
async def _gateway(model: str, chats: dict[int, int], *, seen: int) -> AsyncIterator[Bot]:
    """Run a gateway whose chats have sessions with so many messages each. The model sees `seen` of them."""
    with TemporaryDirectory() as home:
        await _write_sessions(Path(home, "data", "sessions"), chats)

        def command(api: str) -> list[str]:
            run = gatehouse(api, f"{model}/plain", Path(home))
            with Path(home, "gatehouse.toml").open("a") as config:
                config.write(f"[session]\ncompaction = false\ncontext_messages = {seen}\n")
            return run

        async with started(command, Path(home)) as bot:
            yield bot


async def _write_sessions(folder: Path, chats: dict[int, int]) -> None:
    manager = await SessionManager.open(folder, SessionSettings(), lambda: datetime.now(UTC))
    await manager.recover()
    for chat, messages in chats.items():
        origin = Address(channel="telegram", kind=PeerKind.DIRECT, peer=str(chat))
        meta = await manager.start_new(f"agent:main:telegram:direct:{chat}", agent="main", origin=origin)
        turns = range(messages // 2)
        for first in turns[::100]:
            await manager.append(meta.key, [entry for at in turns[first : first + 100] for entry in _turn(chat, at)])
    await manager.close()


def _turn(chat: int, number: int) -> tuple[e.Entry, ...]:
    """Return what a turn leaves in a transcript: a question, its answer, and the end of the turn."""
    turn = f"{number:032x}"
    return (
        e.User(
            turn=turn,
            content=f"This is question {number} of chat {chat}.",
            sender=str(chat),
            sender_name=f"Ada {chat}",
            event_id=f"{chat}:-{number}",
        ),
        e.Assistant(
            turn=turn,
            content=f"And this is answer {number} for chat {chat}.",
            model="local/m",
            usage=e.Usage(input_tokens=800, output_tokens=4),
        ),
        e.TurnEnd(turn=turn, outcome=e.TurnOutcome.ANSWERED),
    )
