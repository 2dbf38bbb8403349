"""Measures messages through the whole gateway: loopback channel, a model in this process, and the real spool."""

import asyncio
import gc
import multiprocessing
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import cast

import structlog

from bench.process import memory_mb
from bench.table import Row
from channels.loopback import LoopbackChannel
from config import Secret, Settings
from gateway.acp.homes import AgentHomes
from gateway.agent.protocol import Chunk, Prompt, TextDelta
from gateway.build import build_daemon, open_daemon
from gateway.daemon import Daemon
from gateway.files.store import FileStore
from gateway.http.auth import Auth
from gateway.observability import housekeeping
from gateway.sessions import SessionManager
from gateway.spool import OnCommitted, Operation, RecoveredWork, ReminderRow, ScheduleRow, Spool, Stats, UsageTotal

CHATS = 50
MESSAGES = 5_000
RATE_LIMIT = 1_000
ONE_BY_ONE = 400
ADDED_P50_MS = 2.0
ADDED_P99_MS = 10.0
WAITING_SESSIONS = 1_000
SLOTS = 64
MODEL_SECONDS = 0.2
MANY_CHATS = 10_000
MANY_MESSAGES = 100_000
FLUSH_INTERVAL = 1.0
ANSWER = "Yes."
_EVENTS = count(1)
"""Event ids. Random ids would add their own cost to the measurement."""


class InstantModel:
    """A model that answers after `seconds`."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds

    async def stream(self, _prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        if self._seconds:
            await asyncio.sleep(self._seconds)
        yield TextDelta(text=ANSWER)


class NoSpool:
    """Replaces the spool and stores nothing."""

    def __init__(self) -> None:
        self.broken = asyncio.Event()
        self.trouble = None
        self.transactions = 0

    def busy_for(self) -> float:
        return 0.0

    async def commit(self, *_operations: Operation, on_done: OnCommitted | None = None, max_delay: float = 0.0) -> None:
        del max_delay
        if on_done is not None:
            on_done(None)

    async def drain(self) -> None:
        return

    async def recover(self) -> RecoveredWork:
        return RecoveredWork(inbox=(), outbox=(), drafts={})

    async def facts(self, _prefix: str) -> dict[str, str]:
        return {}

    async def recurring_reminders(self) -> list[ReminderRow]:
        return []

    async def due_reminders(self, _now: datetime, *, limit: int) -> list[ReminderRow]:
        del limit
        return []

    async def next_reminder(self) -> datetime | None:
        return None

    async def own_schedules(self, *, after: str, limit: int) -> list[ScheduleRow]:
        del after, limit
        return []

    async def due_schedules(self, _now: datetime, *, limit: int, excluded: Sequence[str]) -> list[ScheduleRow]:
        del limit, excluded
        return []

    async def next_schedule(self, _excluded: Sequence[str]) -> datetime | None:
        return None

    async def top_usage(self, _day: str, *, limit: int) -> list[tuple[str, UsageTotal]]:
        return [][:limit]

    async def delete_old_rows(self, _now: datetime) -> None:
        return

    async def stats(self) -> Stats:
        return Stats(inbox={}, outbox={}, seen=0, file_bytes=0)


def rows() -> Iterator[Row]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    rate = asyncio.run(_rate())
    yield Row(
        what=f"messages/s, {CHATS} chats, whole gateway",
        measured=f"{rate:.0f}/s",
        baseline=f"without the spool: {asyncio.run(_rate(with_spool=False)):.0f}/s",
        target=f"> {RATE_LIMIT}/s",
        is_met=rate > RATE_LIMIT,
    )
    bare, ours = asyncio.run(_latencies(with_spool=False)), asyncio.run(_latencies())
    added_p50, added_p99 = median(ours) - median(bare), _p99(ours) - _p99(bare)
    yield Row(
        what="added latency per message, one chat",
        measured=f"p50 {added_p50:.2f} ms, p99 {added_p99:.2f} ms",
        baseline=f"without: p50 {median(bare):.2f} ms; fsync here: {_fsync_ms():.2f} ms",
        target=f"p50 < {ADDED_P50_MS:g} ms, p99 < {ADDED_P99_MS:g} ms",
        is_met=added_p50 < ADDED_P50_MS and added_p99 < ADDED_P99_MS,
    )
    ideal = WAITING_SESSIONS / SLOTS * MODEL_SECONDS
    took = asyncio.run(_waiting())
    yield Row(
        what=f"{WAITING_SESSIONS} sessions, model {MODEL_SECONDS * 1000:.0f} ms, {SLOTS} slots",
        measured=f"{took:.2f} s, {took / ideal:.2f}x",
        baseline=f"ideal: {ideal:.2f} s",
        target="<= 1.3x the ideal",
        is_met=took <= 1.3 * ideal,
    )
    idle, early, late = _memory()
    yield Row(
        what=f"memory after {MANY_MESSAGES:,} messages, {MANY_CHATS:,} chats",
        measured=f"{late:.1f} MB, {late / early:.2f}x",
        baseline=f"after {MANY_CHATS:,} messages: {early:.1f} MB; before the first: {idle:.1f} MB",
        target="within 10 %",
        is_met=late <= 1.1 * early,
    )


@asynccontextmanager
async def _gateway(
    folder: Path, *, with_spool: bool = True, seconds: float = 0.0, flush_interval: float = 30.0
) -> AsyncIterator[LoopbackChannel]:
    channels = {"web": {"enabled": False}, "terminal": {"enabled": False}, "loopback": {}}
    gateway = {"data_dir": folder, "flush_interval": flush_interval}
    settings = Settings.model_validate({"gateway": gateway, "channels": channels})
    async with _daemon(settings, with_spool=with_spool) as daemon, running(daemon, seconds) as chat:
        yield chat


@asynccontextmanager
async def running(daemon: Daemon, seconds: float = 0.0) -> AsyncIterator[LoopbackChannel]:
    """Run `daemon` with a model that answers after `seconds`. Yields its loopback channel."""
    async with asyncio.TaskGroup() as tasks:
        daemon.agents.replace("main", lambda agent: replace(agent, provider=InstantModel(seconds)))
        ready = asyncio.Event()
        tasks.create_task(daemon.run(ready.set), name="daemon")
        await ready.wait()
        housekeeping.tune_garbage_collector()  # As `gatehouse run` does.
        yield cast("LoopbackChannel", daemon.channels.by_identity["loopback", "default"])
        daemon.stop()


@asynccontextmanager
async def _daemon(settings: Settings, *, with_spool: bool) -> AsyncIterator[Daemon]:
    if with_spool:
        async with open_daemon(settings, listen=False) as daemon:
            yield daemon
        return
    folder = settings.gateway.data_dir / "sessions"
    sessions = await SessionManager.open(folder, settings.session, _now)
    await sessions.recover()
    store = FileStore(settings.gateway.data_dir / "files", settings.files.max_stored_bytes)
    spool = cast("Spool", NoSpool())
    auth = Auth(Secret("not used: nothing listens"))
    homes = AgentHomes(settings.gateway.data_dir / "agents")
    yield build_daemon(settings, spool=spool, store=store, sessions=sessions, homes=homes, auth=auth)
    await sessions.close()


def _now() -> datetime:
    return datetime.now(UTC)


async def _rate(*, with_spool: bool = True) -> float:
    with TemporaryDirectory() as folder:
        async with _gateway(Path(folder), with_spool=with_spool) as chat:
            began = perf_counter()
            await say(chat, MESSAGES, CHATS)
            return MESSAGES / (perf_counter() - began)


async def say(chat: LoopbackChannel, messages: int, chats: int) -> None:
    """Send `messages` messages to `chats` chats, in up to 50 chats at a time, and wait for all answers."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_read_answers(chat, messages), name="hear")
        for peer in range(min(chats, CHATS)):
            tasks.create_task(_talk(chat, range(peer, messages, min(chats, CHATS)), chats), name=f"talk:{peer}")


async def _talk(chat: LoopbackChannel, numbers: range, chats: int) -> None:
    for number in numbers:
        await chat.say(f"message {number}", peer=f"peer{number % chats}", event_id=str(next(_EVENTS)))


async def _read_answers(chat: LoopbackChannel, messages: int) -> None:
    for _ in range(messages):
        await _next_answer(chat)


async def _next_answer(chat: LoopbackChannel) -> str:
    """Wait for an answer and return its peer. An error message might be faster, so it raises `RuntimeError`."""
    answer = await chat.hear_message()
    if answer.text != ANSWER:
        raise RuntimeError(f"unexpected answer: {answer.text}")
    return answer.address.peer


async def _latencies(*, with_spool: bool = True) -> list[float]:
    with TemporaryDirectory() as folder:
        async with _gateway(Path(folder), with_spool=with_spool) as chat:
            return [await round_trip_ms(chat) for _ in range(ONE_BY_ONE)][ONE_BY_ONE // 10 :]


async def round_trip_ms(chat: LoopbackChannel) -> float:
    began = perf_counter()
    await chat.say("hello")
    await _next_answer(chat)
    return (perf_counter() - began) * 1000


async def _waiting() -> float:
    with TemporaryDirectory() as folder:
        async with _gateway(Path(folder), seconds=MODEL_SECONDS) as chat:
            began = perf_counter()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_read_answers(chat, WAITING_SESSIONS), name="hear")
                for peer in range(WAITING_SESSIONS):
                    tasks.create_task(_talk(chat, range(peer, peer + 1), WAITING_SESSIONS), name=f"talk:{peer}")
            return perf_counter() - began


def _memory() -> tuple[float, float, float]:
    """Measure in a new process, which no earlier benchmark has grown."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_memory_here)


def _memory_here() -> tuple[float, float, float]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    return asyncio.run(_levels())


async def _levels() -> tuple[float, float, float]:
    """Return the memory before the first message, after a round through all chats, and after all rounds."""
    with TemporaryDirectory() as folder:
        async with _gateway(Path(folder), flush_interval=FLUSH_INTERVAL) as chat:
            levels = [memory_mb(os.getpid())]
            for _ in range(MANY_MESSAGES // MANY_CHATS):
                await _converse(chat, MANY_CHATS)
                levels.append(await _settled_mb(Path(folder) / "sessions" / "index.json"))
            return levels[0], levels[1], levels[-1]


async def _converse(chat: LoopbackChannel, chats: int) -> None:
    """Send one message to each chat, in 50 at a time, and wait for each answer, so that no queue adds memory."""
    answered = {f"peer{number}": asyncio.Event() for number in range(chats)}
    async with asyncio.TaskGroup() as tasks:
        for first in range(CHATS):
            tasks.create_task(_ask_each(chat, list(answered.items())[first::CHATS]), name=f"ask:{first}")
        for _ in range(chats):
            answered[await _next_answer(chat)].set()


async def _ask_each(chat: LoopbackChannel, answered: Sequence[tuple[str, asyncio.Event]]) -> None:
    for peer, answer in answered:
        await chat.say("hello", peer=peer, event_id=str(next(_EVENTS)))
        await answer.wait()


async def _settled_mb(index: Path) -> float:
    """Return the memory once all sessions are flushed. Unflushed data would count as growth."""
    last: int | None = None
    while True:  # There is no event for a flush, and before the first one there is no index.
        written = index.stat().st_mtime_ns if index.exists() else None  # noqa: ASYNC240 - nothing else runs.
        if written is not None and written == last:
            break
        last = written
        await asyncio.sleep(3 * FLUSH_INTERVAL)
    gc.collect()
    return memory_mb(os.getpid())


def _p99(values: list[float]) -> float:
    return quantiles(values, n=100)[-1]


def _fsync_ms() -> float:
    with TemporaryDirectory() as folder:
        descriptor = os.open(Path(folder) / "probe", os.O_WRONLY | os.O_CREAT, 0o600)
        took = []
        for _ in range(100):
            os.write(descriptor, b"x" * 4096)
            began = perf_counter()
            os.fsync(descriptor)
            took.append((perf_counter() - began) * 1000)
        os.close(descriptor)
        return median(took)
