"""What the gateway says of itself: a sentence in chat, a table of facts for the command line."""

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

import msgspec
from aiohttp import web

from gateway import __version__
from gateway.adapters.registry import Channels
from gateway.contract import Access, Caller, Route
from gateway.files.identify import in_bytes
from gateway.http.routes import ChannelHealth, Health
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.mcp.registry import McpServers
from gateway.metrics import Histogram, Tally
from gateway.observability.housekeeping import AtWork, Flushes, FreeSpace, Running
from gateway.sessions import SessionManager
from gateway.spool import OutboxRow, Spool, SpoolBroken, SpoolFull, Stats
from gateway.text.clean import count, duration
from gateway.turns.agents import AgentRegistry


@dataclass(frozen=True, slots=True, kw_only=True)
class Organs:
    """`replies` are the lanes of the outbox, one for each chat."""

    channels: Channels
    sessions: SessionManager
    spool: Spool
    flushes: Flushes
    space: FreeSpace
    lanes: Lanes[Job]
    at_work: AtWork
    replies: Lanes[OutboxRow]
    mcp: McpServers
    roster: Callable[[], AgentRegistry]
    tally: Tally
    is_stopping: Callable[[], bool]


class ChannelFacts(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    account: str
    state: str
    reason: str
    since: datetime
    last_event_at: datetime | None
    last_error: str
    last_error_at: datetime | None


class TurnFacts(msgspec.Struct, frozen=True, kw_only=True):
    channel: str
    agent: str
    session: str
    seconds: float


class SpoolFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Unfinished messages and replies by their state, and dead ones."""

    bytes: int
    messages: dict[str, int]
    replies: dict[str, int]


class FlushFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`age_seconds` since one has worked; `took_seconds` is the last one's, however it went."""

    age_seconds: float
    took_seconds: float | None
    failures: int


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`most_within_seconds`: 95 of 100 answers were whole by then; None when that was beyond measure."""

    name: str
    requests: int
    failed: int
    mean_seconds: float
    most_within_seconds: float | None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """`sentence` is what `/status` says in a chat. `spool` is None when it did not answer."""

    version: str
    sentence: str
    state: str
    ready: bool
    taken_at: datetime
    started_at: datetime
    uptime_seconds: float
    troubles: tuple[str, ...]
    warnings: tuple[str, ...]
    channels: tuple[ChannelFacts, ...]
    turns_running: int
    turns_awaiting_approval: int
    turns: tuple[TurnFacts, ...]
    messages_waiting: int
    replies_waiting: int
    sessions: int
    scopes: int
    spool: SpoolFacts | None
    flush: FlushFacts
    memory_bytes: int
    open_files: int
    disk_free_bytes: int | None
    models: tuple[ModelFacts, ...]


_COMMIT_STUCK_AFTER = 10.0
"""Seconds that one commit may take before readiness says so; a flush, which syncs many files, may take longer."""
_FLUSH_STUCK_AFTER = 60.0
_LITTLE_ROOM = 200 * 1024 * 1024
_NO_ROOM = 1024 * 1024
"""Bytes; a disk with less is as good as full, also while nobody has tried to write."""
_NEARLY_FULL = 0.8
_FAILURES_IN_A_ROW = 3


class Condition:
    """Not ready: a channel is down, or what is accepted might not be kept. Degraded: messages are still taken."""

    def __init__(self, organs: Organs) -> None:
        self._organs = organs

    def health(self) -> Health:
        organs = self._organs
        channels = organs.channels.health()
        troubles = tuple(self._troubles())
        are_up = all(channel.state == "up" for channel in channels)
        return Health(
            ready=are_up and not troubles and not organs.is_stopping(),
            channels=channels,
            troubles=troubles,
            warnings=tuple(self._warnings()),
        )

    def _troubles(self) -> Iterator[str]:
        sessions, spool, flushes = self._organs.sessions, self._organs.spool, self._organs.flushes
        free = self._organs.space.free
        if free is not None and free < _NO_ROOM:
            yield f"The disk of the data directory is full: {in_bytes(free)} are free. Make room there."
        if sessions.trouble is not None:
            yield sessions.trouble
        if spool.trouble is not None:
            yield spool.trouble
        if spool.busy_for() > _COMMIT_STUCK_AFTER:
            yield "The disk has not answered for a while."
        if flushes.busy_for() > _FLUSH_STUCK_AFTER:
            yield f"Conversations have been on their way to the disk for {flushes.busy_for():.0f} seconds."

    def _warnings(self) -> Iterator[str]:
        space, lanes = self._organs.space, self._organs.lanes
        limit = lanes.max_in_all
        if space.free is not None and _NO_ROOM <= space.free < _LITTLE_ROOM:
            yield f"Only {in_bytes(space.free)} are free on the disk of the data directory; make room there."
        if limit is not None and lanes.waiting > _NEARLY_FULL * limit:
            yield f"{lanes.waiting} messages wait for their turn, and at most {limit} may (gateway.max_queued)."
        for server in self._organs.mcp:
            if server.trouble:
                # Why is in the server's own words, which are not for a chat.
                yield f"The MCP server {server.name} cannot be used; the log says why."
        for model in self._organs.roster().passed_over():
            yield f"The model {model} has failed a moment ago, and another is asked in its place."
        for model, times in self._organs.tally.failing.items():
            if times >= _FAILURES_IN_A_ROW:
                yield f"The model {model} has failed {times} times in a row; the log says why."


_SPOOL_DEADLINE = 2.0
"""Seconds; a spool that is stuck must not keep anybody from learning that it is."""
_PROCESS = Path("/proc/self")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    taken_at: datetime
    started_at: datetime
    uptime: float
    health: Health
    running: tuple[Running, ...]
    """The jobs at hand, the longest first, with those that wait for an approval."""
    turns_running: int
    turns_resting: int
    messages_waiting: int
    max_waiting: int | None
    replies_waiting: int
    """Parts that are on their way to a chat, or stand behind one that is."""
    sessions: int
    scopes: int
    spool: Stats | None
    """None when the spool did not answer."""
    spool_busy_for: float
    spool_transactions: int
    flush_took: float | None
    flush_age: float
    flush_failures: int
    memory_bytes: int
    open_files: int
    cpu_seconds: float
    disk_free_bytes: int | None
    disk_size_bytes: int | None


class Vitals:
    def __init__(self, organs: Organs, condition: Condition, *, now: Callable[[], datetime]) -> None:
        self._organs = organs
        self._condition = condition
        self.now = now
        self.started = now()
        self._started_at = monotonic()

    @property
    def lanes(self) -> Lanes[Job]:
        return self._organs.lanes

    def health(self) -> Health:
        return self._condition.health()

    async def take(self) -> Reading:
        spool = await self._ask_spool()
        organs, times = self._organs, os.times()
        lanes = organs.lanes
        return Reading(
            taken_at=self.now(),
            started_at=self.started,
            uptime=monotonic() - self._started_at,
            health=self.health(),
            running=tuple(organs.at_work.running()),
            turns_running=lanes.running,
            turns_resting=lanes.resting,
            messages_waiting=lanes.waiting,
            max_waiting=lanes.max_in_all,
            replies_waiting=organs.replies.waiting + organs.replies.running,
            sessions=organs.sessions.session_count,
            scopes=organs.sessions.scope_count,
            spool=spool,
            spool_busy_for=organs.spool.busy_for(),
            spool_transactions=organs.spool.transactions,
            flush_took=organs.flushes.took,
            flush_age=organs.flushes.age(),
            flush_failures=organs.flushes.failures,
            memory_bytes=resident_bytes(),
            open_files=open_files(),
            cpu_seconds=times.user + times.system,
            disk_free_bytes=organs.space.free,
            disk_size_bytes=organs.space.size,
        )

    async def _ask_spool(self) -> Stats | None:
        try:
            async with asyncio.timeout(_SPOOL_DEADLINE):
                return await self._organs.spool.stats()
        except (TimeoutError, SpoolFull, SpoolBroken):
            return None


def resident_bytes() -> int:
    """Return what the process has in memory; /proc is no disk, so it may be read on the event loop. 0: cannot tell."""
    try:
        return int((_PROCESS / "statm").read_text(encoding="ascii").split()[1]) * _PAGE
    except OSError:
        return 0


def open_files() -> int:
    try:
        return sum(1 for _ in (_PROCESS / "fd").iterdir())
    except OSError:
        return 0


_SHOWN = 100
"""Turns that are told one by one: the longest."""
_MOST = 0.95


class Status:
    def __init__(self, vitals: Vitals, tally: Tally) -> None:
        self._vitals = vitals
        self._tally = tally

    def sentence(self) -> str:
        vitals = self._vitals
        health = vitals.health()
        channels = ", ".join(f"{channel.name} {channel.state}" for channel in health.channels)
        lines = [
            f"Gatehouse {__version__}, up {duration(vitals.now() - vitals.started)}; channels: {channels}.",
            f"{self._running()}, {count(vitals.lanes.waiting, 'message')} waiting.",
            *(f"Trouble: {trouble}" for trouble in (*health.troubles, *health.warnings)),
        ]
        return "\n".join(lines)

    def _running(self) -> str:
        running, resting = self._vitals.lanes.running, self._vitals.lanes.resting
        asking = f", {resting} waiting for an approval" if resting else ""
        return f"{count(running, 'turn')} running{asking}"

    async def facts(self) -> Facts:
        reading = await self._vitals.take()
        health = reading.health
        return Facts(
            version=__version__,
            sentence=self.sentence(),
            state=health.state,
            ready=health.ready,
            taken_at=reading.taken_at,
            started_at=reading.started_at,
            uptime_seconds=round(reading.uptime, 1),
            troubles=health.troubles,
            warnings=health.warnings,
            channels=tuple(map(self._channel, health.channels)),
            turns_running=reading.turns_running,
            turns_awaiting_approval=reading.turns_resting,
            turns=tuple(map(_turn, reading.running[:_SHOWN])),
            messages_waiting=reading.messages_waiting,
            replies_waiting=reading.replies_waiting,
            sessions=reading.sessions,
            scopes=reading.scopes,
            spool=None if reading.spool is None else _spool(reading.spool),
            flush=FlushFacts(
                age_seconds=round(reading.flush_age, 1),
                took_seconds=None if reading.flush_took is None else round(reading.flush_took, 4),
                failures=reading.flush_failures,
            ),
            memory_bytes=reading.memory_bytes,
            open_files=reading.open_files,
            disk_free_bytes=reading.disk_free_bytes,
            models=tuple(self._model(name, seconds) for (name,), seconds in self._tally.answers.items()),
        )

    def _channel(self, channel: ChannelHealth) -> ChannelFacts:
        heard = self._tally.last_events.get((channel.name, channel.account))
        return ChannelFacts(
            name=channel.name,
            account=channel.account,
            state=channel.state,
            reason=channel.reason,
            since=channel.since,
            last_event_at=None if heard is None else datetime.fromtimestamp(heard, UTC),
            last_error=channel.last_error,
            last_error_at=channel.last_error_at,
        )

    def _model(self, name: str, seconds: Histogram) -> ModelFacts:
        most = seconds.bound_of(_MOST)
        return ModelFacts(
            name=name,
            requests=seconds.count,
            failed=self._tally.requests[name, "failed"],
            mean_seconds=round(seconds.total / seconds.count, 3),
            most_within_seconds=None if most == float("inf") else most,
        )

    def routes(self) -> list[Route]:
        return [Route(method="GET", path="/status", access=Access.OWNER, handle=self._answer)]

    async def _answer(self, _request: web.Request, _caller: Caller) -> web.StreamResponse:
        return web.Response(body=msgspec.json.encode(await self.facts()), content_type="application/json")


def _turn(running: Running) -> TurnFacts:
    job = running.job
    return TurnFacts(
        channel=job.inbound.address.channel, agent=job.agent, session=job.session, seconds=round(running.seconds, 1)
    )


def _spool(stats: Stats) -> SpoolFacts:
    return SpoolFacts(
        bytes=stats.file_bytes,
        messages={str(state): number for state, number in stats.inbox.items()},
        replies={str(state): number for state, number in stats.outbox.items()},
    )
