"""`make soak`: a day of a busy gateway in a few minutes. It checks that memory, files, tasks and threads stay flat.

Usage: `python -m bench.soak [MESSAGES [SESSIONS]]`. The clock of the gateway runs faster, so that the messages span 24
hours.
"""

import asyncio
import gc
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import linear_regression
from tempfile import TemporaryDirectory
from time import perf_counter

import structlog

from bench.gateway import running
from bench.process import memory_mb
from bench.table import Row, show
from channels.loopback import LoopbackChannel
from config import Settings
from gateway.build import open_daemon
from gateway.contract import Verdict

MESSAGES = 100_000
SESSIONS = 1_000
DAY = timedelta(hours=24)
PEOPLE = 50
SAMPLES = 20
FLUSH_INTERVAL = 0.5
NEW_EVERY = 97
"""One message in 97 is `/new`, so that sessions are created and pruned all the time."""
REPEAT_EVERY = 31
"""One message in 31 is delivered twice, as platforms may do."""
SLOPE_LIMIT = 1.0
SPOOL_LIMIT = 2.0
SPREAD = 2
"""A count that grows by no more than this is flat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    messages: int
    memory: float
    descriptors: int
    tasks: int
    threads: int
    leftovers: int
    spool_kb: int


class Clock:
    """A clock that each message advances by the same step."""

    def __init__(self, messages: int) -> None:
        self._at = datetime.now(UTC)
        self._step = DAY / messages

    def tick(self) -> None:
        self._at += self._step

    def now(self) -> datetime:
        return self._at


def main(arguments: Sequence[str]) -> int:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    messages = int(arguments[0]) if arguments else MESSAGES
    sessions = int(arguments[1]) if arguments[1:] else SESSIONS
    began = perf_counter()
    samples = asyncio.run(_soak(messages, sessions))
    rows = list(_rows(samples, sessions, perf_counter() - began))
    show(rows)
    return 0 if all(row.is_met for row in rows) else 1


async def _soak(messages: int, sessions: int) -> list[Sample]:
    clock = Clock(messages)
    samples: list[Sample] = []
    with TemporaryDirectory() as folder:
        async with _gateway(Path(folder), clock) as chat:
            step = max(messages // SAMPLES, 1)
            for first in range(0, messages, step):
                numbers = range(first, min(first + step, messages))
                await _say(chat, numbers, sessions, clock)
                samples.append(await _sample(numbers.stop, Path(folder)))
                print(samples[-1], flush=True)
    return samples


@asynccontextmanager
async def _gateway(folder: Path, clock: Clock) -> AsyncIterator[LoopbackChannel]:
    settings = Settings.model_validate(
        {
            "gateway": {"data_dir": folder, "flush_interval": FLUSH_INTERVAL},
            "session": {"backlog_limit": 3},
            "channels": {"web": {"enabled": False}, "terminal": {"enabled": False}, "loopback": {}},
        }
    )
    async with open_daemon(settings, listen=False, now=clock.now) as daemon, running(daemon) as chat:
        yield chat


async def _say(chat: LoopbackChannel, numbers: range, sessions: int, clock: Clock) -> None:
    """Send the messages, from 50 people at a time, and wait for all answers."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_read_answers(chat, len(numbers)), name="hear")
        for person in range(PEOPLE):
            tasks.create_task(_talk(chat, numbers[person::PEOPLE], sessions, clock), name=f"talk:{person}")


async def _talk(chat: LoopbackChannel, numbers: range, sessions: int, clock: Clock) -> None:
    for number in numbers:
        clock.tick()
        text = "/new" if number % NEW_EVERY == 0 else f"message {number}: " + "so it goes. " * (number % 20)
        for _ in range(2 if number % REPEAT_EVERY == 0 else 1):
            verdict = await chat.say(text, peer=f"peer{number % sessions}", event_id=f"event{number}")
            if verdict not in (Verdict.ACCEPTED, Verdict.DUPLICATE):
                raise RuntimeError(f"message {number} was not accepted: {verdict}")


async def _read_answers(chat: LoopbackChannel, messages: int) -> None:
    for _ in range(messages):
        await chat.hear_message()


async def _sample(messages: int, folder: Path) -> Sample:
    """Measure once all messages are answered and flushed. Unfinished work would count as growth."""
    await asyncio.sleep(4 * FLUSH_INTERVAL)
    gc.collect()
    return Sample(
        messages=messages,
        memory=memory_mb(os.getpid()),
        descriptors=len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - only counted
        tasks=len(asyncio.all_tasks()),
        threads=threading.active_count(),
        leftovers=sum(1 for _ in _leftovers(folder)),
        spool_kb=_spool_kb(folder),
    )


def _spool_kb(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("spool.db*")) // 1024


def _leftovers(folder: Path) -> Iterator[Path]:
    """Yield the temporary files. An idle gateway has none."""
    return (path for path in folder.rglob(".*") if path.is_file())


def _rows(samples: Sequence[Sample], sessions: int, took: float) -> Iterator[Row]:
    settled = samples[len(samples) // 2 :]
    slope = _slope(settled, [sample.memory for sample in settled])
    messages = samples[-1].messages
    yield Row(
        what=f"memory, {messages:,} messages, {sessions:,} chats, {took:.0f} s for 24 h",
        measured=f"{slope:+.2f} MB per 10,000 messages, {settled[-1].memory:.1f} MB at the end",
        baseline=f"after the first {samples[0].messages:,}: {samples[0].memory:.1f} MB",
        target=f"<= {SLOPE_LIMIT:g} MB per 10,000, in the second half",
        is_met=slope <= SLOPE_LIMIT,
    )
    yield _flat("open descriptors", [sample.descriptors for sample in settled])
    yield _flat("tasks", [sample.tasks for sample in settled])
    yield _flat("threads", [sample.threads for sample in settled])
    yield _spool(settled)
    yield Row(
        what="temporary files",
        measured=str(settled[-1].leftovers),
        baseline=f"at most {max(sample.leftovers for sample in samples)} at any sample",
        target="none",
        is_met=settled[-1].leftovers == 0,
    )


def _spool(samples: Sequence[Sample]) -> Row:
    """Compare the size of the spool. It keeps the last 20,000 finished messages, and all event ids for days."""
    slope = _slope(samples, [sample.spool_kb / 1024 for sample in samples])
    return Row(
        what="the spool on disk",
        measured=f"{slope:+.2f} MB per 10,000 messages, {samples[-1].spool_kb / 1024:.1f} MB at the end",
        baseline=f"in the middle: {samples[0].spool_kb / 1024:.1f} MB",
        target=f"<= {SPOOL_LIMIT:g} MB per 10,000, in the second half",
        is_met=slope <= SPOOL_LIMIT,
    )


def _slope(samples: Sequence[Sample], values: Sequence[float]) -> float:
    """Return the growth of a value per 10,000 messages."""
    return linear_regression([sample.messages / 10_000 for sample in samples], values).slope


def _flat(what: str, counts: Sequence[int]) -> Row:
    return Row(
        what=what,
        measured=f"{counts[-1]} at the end",
        baseline=f"{min(counts)} to {max(counts)} in the second half",
        target="flat",
        is_met=counts[-1] - counts[0] <= SPREAD,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
