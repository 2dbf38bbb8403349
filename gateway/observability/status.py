"""The state of the whole gateway: readiness, `/status` in chat, the status page of the command line, and metrics."""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

import msgspec
from aiohttp import web

from config import StorageEngine
from gateway import __version__
from gateway.adapters.registry import ChannelRegistry
from gateway.contract import Access, Caller, Route
from gateway.database.migrate import HEAD
from gateway.extraction.archiver import ArchivingReport, MemoryArchiver
from gateway.http.routes import Health
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.mcp.server import McpServers
from gateway.metrics import Metrics
from gateway.observability.housekeeping import DiskSpace, SessionFlusher
from gateway.outbound.delivery_health import DeliveryHealth, Outage
from gateway.sessions import SessionManager
from gateway.spool import OutboxRow, Spool, SpoolBroken, SpoolUnavailable, Stats
from gateway.text.plain import count, duration, in_bytes
from gateway.turns.agents import AgentRegistry

COMMIT_TIMEOUT = 10.0
"""Seconds after which a running commit makes the gateway not ready."""
FLUSH_TIMEOUT = 60.0
"""The same for a flush, which syncs many files."""
LOW_DISK_BYTES = 200 * 1024 * 1024
FULL_DISK_BYTES = 1024 * 1024
"""A disk with less free space counts as full, even if no write has failed yet."""
NEARLY_FULL = 0.8
FAILURES_IN_A_ROW = 3
SPOOL_TIMEOUT = 2.0
"""Seconds to wait for the spool's figures. A stuck spool must not prevent the report that says so."""
TURNS_LISTED = 100
PERCENTILE = 0.95


class ChannelReport(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    account: str
    state: str
    reason: str
    since: datetime
    last_event_at: datetime | None
    last_error: str
    last_error_at: datetime | None


class TurnReport(msgspec.Struct, frozen=True, kw_only=True):
    channel: str
    agent: str
    session: str
    seconds: float


class SpoolReport(msgspec.Struct, frozen=True, kw_only=True):
    """Unfinished and dead messages and replies, by state."""

    bytes: int
    messages: dict[str, int]
    replies: dict[str, int]


class StorageReport(msgspec.Struct, frozen=True, kw_only=True):
    """`database` and `schema` are empty for files. `commit_seconds` is the time of all commits together."""

    engine: str
    database: str
    schema: str
    commit_seconds: float
    slow_commits: int


class FlushReport(msgspec.Struct, frozen=True, kw_only=True):
    """`age_seconds` counts from the last successful flush; `took_seconds` is about the last one, successful or not."""

    age_seconds: float
    took_seconds: float | None
    failures: int


class ModelReport(msgspec.Struct, frozen=True, kw_only=True):
    """`most_within_seconds`: the 95th percentile of the response time. None if it is above the highest bucket."""

    name: str
    requests: int
    failed: int
    mean_seconds: float
    most_within_seconds: float | None


class StatusReport(msgspec.Struct, frozen=True, kw_only=True):
    """The response of `GET /status`. `/metrics` is rendered from it as well.

    `sentence` is the answer to `/status` in a chat. `spool` is None if the spool did not respond.
    """

    version: str
    sentence: str
    state: str
    ready: bool
    taken_at: datetime
    started_at: datetime
    uptime_seconds: float
    troubles: tuple[str, ...]
    warnings: tuple[str, ...]
    channels: tuple[ChannelReport, ...]
    turns_running: int
    turns_awaiting_approval: int
    turns: tuple[TurnReport, ...]
    """The longest running first."""
    messages_waiting: int
    replies_waiting: int
    sessions: int
    scopes: int
    spool: SpoolReport | None
    flush: FlushReport
    memory_bytes: int
    open_files: int
    disk_free_bytes: int | None
    models: tuple[ModelReport, ...]
    # Newer than the fields above. The defaults let this version's command line read an older daemon's report.
    queue_limit: int = 0
    spool_busy_seconds: float = 0.0
    spool_transactions: int = 0
    cpu_seconds: float = 0.0
    spool_lost: bool = False
    """An earlier spool was missing, empty or damaged, and this run has reported it."""
    outages: tuple[Outage, ...] = ()
    """Channels that cannot send at the moment."""
    notes: tuple[str, ...] = ()
    """Facts that the operator should know, but that need no action."""
    coding_agents: dict[str, int] = {}
    """How many programs of each coding agent run."""
    storage: StorageReport | None = None
    """None for an older daemon."""
    schedules: dict[str, int] = {}
    """How many there are `active`, `paused` and `failing`, which are active as well. Empty if the spool is stuck."""
    cluster: "ClusterReport | None" = None
    """None without a cluster."""
    archiving: ArchivingReport | None = None
    """None for an older daemon, or if the spool did not respond."""


class ClusterReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a node knows of its cluster."""

    node: str
    nodes: int
    """Nodes that are alive, this one included."""
    shards: int
    posts: int
    free_shards: int
    """Shards that no node owns."""
    arrivals: int
    """Messages that other nodes have accepted for this one, and that it has not taken in yet."""
    takeovers: int
    lease_left_seconds: float
    is_leaving: bool = False
    waiting: dict[int, int] = {}
    """Messages of other nodes that wait for this one, by each of its shards."""
    oldest_seconds: float = 0.0
    """For how long the oldest of these has been waiting."""
    commits: dict[int, int] = {}
    """Changes of conversations that this node has stored, by shard."""
    last_takeover_at: datetime | None = None
    last_takeover_seconds: float = 0.0
    """From the last sign of life of a node until this one served its share of the shards."""
    absent_labels: tuple[str, ...] = ()
    """Labels that repositories or agents need, and no node has."""
    has_other_settings: bool = False
    """The settings of another node differ from those of this one."""


@dataclass(slots=True, kw_only=True)
class GatewayStatus:
    channels: ChannelRegistry
    sessions: SessionManager
    spool: Spool
    engine: StorageEngine
    database: str
    """What people call the database, without a password; empty for files."""
    flusher: SessionFlusher
    disk: DiskSpace
    lanes: Lanes[Job]
    replies: Lanes[OutboxRow]
    """The lanes of the outbox, one for each chat."""
    delivery: DeliveryHealth
    mcp: McpServers
    agents: AgentRegistry
    coding_agents: Callable[[], Mapping[str, int]]
    """Returns how many programs of each coding agent run."""
    metrics: Metrics
    is_stopping: Callable[[], bool]
    now: Callable[[], datetime]
    cluster: Callable[[], ClusterReport | None] = lambda: None
    memory_archiver: Callable[[], MemoryArchiver]
    _started_at: datetime = field(init=False)
    _started: float = field(init=False)

    def __post_init__(self) -> None:
        self._started_at = self.now()
        self._started = monotonic()

    def health(self) -> Health:
        """Return whether the gateway is ready: every channel is up, and accepted messages are safe."""
        channels = self.channels.health()
        troubles = tuple(self._troubles())
        are_up = all(channel.state == "up" for channel in channels)
        return Health(
            ready=are_up and not troubles and not self.is_stopping(),
            channels=channels,
            troubles=troubles,
            warnings=tuple(self._warnings()),
        )

    def _troubles(self) -> Iterator[str]:
        if self.disk.free is not None and self.disk.free < FULL_DISK_BYTES:
            yield f"The disk of the data directory is full ({in_bytes(self.disk.free)} free). Free some space."
        if self.sessions.trouble is not None:
            yield self.sessions.trouble
        if self.spool.trouble is not None:
            yield self.spool.trouble
        if self.spool.busy_for() > COMMIT_TIMEOUT:
            place = "database" if self.engine is StorageEngine.POSTGRESQL else "disk"
            yield f"The {place} hasn't responded for {self.spool.busy_for():.0f} seconds."
        if self.flusher.busy_for() > FLUSH_TIMEOUT:
            yield f"Writing the sessions to disk has taken {self.flusher.busy_for():.0f} seconds so far."

        for outage in self.delivery.outages():
            # The reason is the platform's own text, which must not reach a chat.
            yield (
                f"Sending on {outage.channel} has failed for {outage.seconds:.0f} seconds. Replies wait, and Gatehouse "
                "keeps trying. See the log for the reason."
            )

    def _warnings(self) -> Iterator[str]:
        free, limit = self.disk.free, self.lanes.max_total
        if (cluster := self.cluster()) is not None:
            if cluster.has_other_settings:
                yield "The settings of another node of the cluster differ from those of this one. Make them the same."
            for label in cluster.absent_labels:
                yield (
                    f"No node of the cluster has the label {label}, so conversations that need it can't go on. Start a "
                    "node with it, or remove the label from the repositories and agents."
                )
            if cluster.free_shards:
                yield f"{count(cluster.free_shards, 'shard')} of the cluster have no owner, so their messages wait."
        if self.spool.loss is not None:
            yield self.spool.loss
        if late := self.delivery.late():
            yield f"{count(late, 'chat')} can't be reached, although others can. See the log for the reason."
        if free is not None and FULL_DISK_BYTES <= free < LOW_DISK_BYTES:
            yield f"Only {in_bytes(free)} free on the disk of the data directory. Free some space."
        if limit is not None and self.lanes.waiting > NEARLY_FULL * limit:
            yield f"{self.lanes.waiting} of at most {limit} messages are waiting (gateway.max_queued)."
        for server in self.mcp:
            if server.trouble:
                # The reason is the server's own text, which must not reach a chat.
                yield f"The MCP server {server.name} is not available. See the log for the reason."
        for model in self.agents.skipped_models():
            yield f"The model {model} failed recently, so its fallback is used."
        if trouble := self.memory_archiver().trouble:
            yield trouble
        for model, failures in self.metrics.failing.items():
            if failures >= FAILURES_IN_A_ROW:
                yield f"The model {model} failed {failures} times in a row. See the log for the reason."

    def _notes(self) -> Iterator[str]:
        for server in self.mcp:
            if number := len(server.left_out):
                yield f"Left out of the MCP server {server.name}: {count(number, 'tool')}. /tools says why."

    def sentence(self) -> str:
        health = self.health()
        channels = ", ".join(f"{channel.name} {channel.state}" for channel in health.channels)
        approvals = f", {self.lanes.parked_count} waiting for approval" if self.lanes.parked_count else ""
        programs = sum(self.coding_agents().values())
        coding = f", {count(programs, 'coding agent')} started" if programs else ""
        waiting = f"{count(self.lanes.waiting, 'message')} waiting"
        lines = [
            f"Gatehouse {__version__}, up {duration(self.now() - self._started_at)}; channels: {channels}.",
            f"{count(self.lanes.running, 'turn')} running{approvals}, {waiting}{coding}.",
            *(f"Trouble: {trouble}" for trouble in (*health.troubles, *health.warnings)),
            *self._notes(),
        ]
        return "\n".join(lines)

    async def report(self) -> StatusReport:
        stats: Stats | None = None
        schedules: dict[str, int] = {}
        archiving: ArchivingReport | None = None
        with suppress(TimeoutError, SpoolUnavailable, SpoolBroken):
            async with asyncio.timeout(SPOOL_TIMEOUT):
                stats = await self.spool.stats()
                schedules = await self.spool.schedule_counts()
                archiving = await self.memory_archiver().report()
        health, times = self.health(), os.times()
        return StatusReport(
            version=__version__,
            sentence=self.sentence(),
            state=health.state,
            ready=health.ready,
            taken_at=self.now(),
            started_at=self._started_at,
            coding_agents=dict(self.coding_agents()),
            uptime_seconds=round(monotonic() - self._started, 3),
            troubles=health.troubles,
            warnings=health.warnings,
            channels=tuple(
                ChannelReport(
                    name=channel.name,
                    account=channel.account,
                    state=channel.state,
                    reason=channel.reason,
                    since=channel.since,
                    last_event_at=self._last_event(channel.name, channel.account),
                    last_error=channel.last_error,
                    last_error_at=channel.last_error_at,
                )
                for channel in health.channels
            ),
            turns_running=self.lanes.running,
            turns_awaiting_approval=self.lanes.parked_count,
            turns=tuple(
                TurnReport(
                    channel=job.inbound.address.channel,
                    agent=job.agent,
                    session=job.session,
                    seconds=round(seconds, 3),
                )
                for job, seconds in self.lanes.longest_running(TURNS_LISTED)
            ),
            messages_waiting=self.lanes.waiting,
            queue_limit=self.lanes.max_total or 0,
            replies_waiting=self.replies.waiting + self.replies.running,
            sessions=self.sessions.session_count,
            scopes=self.sessions.scope_count,
            spool=None
            if stats is None
            else SpoolReport(
                bytes=stats.file_bytes,
                messages={str(state): number for state, number in stats.inbox.items()},
                replies={str(state): number for state, number in stats.outbox.items()},
            ),
            spool_busy_seconds=round(self.spool.busy_for(), 3),
            spool_transactions=self.spool.transactions,
            schedules=schedules,
            cluster=self.cluster(),
            archiving=archiving,
            storage=StorageReport(
                engine=self.engine.value,
                database=self.database,
                schema=HEAD if self.database else "",
                commit_seconds=round(self.spool.commit_seconds, 6),
                slow_commits=self.spool.slow_commits,
            ),
            flush=FlushReport(
                age_seconds=round(self.flusher.age(), 3),
                took_seconds=None if self.flusher.took is None else round(self.flusher.took, 6),
                failures=self.flusher.failures,
            ),
            memory_bytes=resident_bytes(),
            open_files=open_files(),
            cpu_seconds=round(times.user + times.system, 3),
            spool_lost=self.spool.loss is not None,
            outages=tuple(self.delivery.outages()),
            notes=tuple(self._notes()),
            disk_free_bytes=self.disk.free,
            models=tuple(
                ModelReport(
                    name=name,
                    requests=seconds.count,
                    failed=self.metrics.requests[name, "failed"],
                    mean_seconds=round(seconds.total / seconds.count, 3),
                    most_within_seconds=None if (most := seconds.bound_of(PERCENTILE)) == float("inf") else most,
                )
                for (name,), seconds in self.metrics.answers.items()
            ),
        )

    def _last_event(self, channel: str, account: str) -> datetime | None:
        at = self.metrics.last_events.get((channel, account))
        return None if at is None else datetime.fromtimestamp(at, UTC)

    def routes(self) -> list[Route]:
        async def answer(_request: web.Request, _caller: Caller) -> web.StreamResponse:
            return web.Response(body=msgspec.json.encode(await self.report()), content_type="application/json")

        return [Route(method="GET", path="/status", access=Access.OWNER, handle=answer)]


def resident_bytes() -> int:
    """Return the resident memory of this process, or 0 where /proc is not available."""
    try:
        # /proc is not a disk, so reading it does not block the event loop.
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def open_files() -> int:
    """Return the number of open file descriptors of this process, or 0 where /proc is not available."""
    try:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    except OSError:
        return 0
