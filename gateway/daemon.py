"""The daemon: starts the parts that `build.py` made, applies new settings, and shuts down in order."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import structlog

from config import LogLevel, ReloadPlan, Settings, plan_reload
from gateway.access.chat_migrations import MIGRATION_FACTS, ChatMigrations
from gateway.access.guests import FACTS, Person
from gateway.access.owner_chats import OWNER_CHAT_FACTS, OwnerChats
from gateway.access.pairing import Pairing
from gateway.access.rules import Live, may_talk, named_people
from gateway.access.tokens import TOKEN_FACTS, TokenIssuer
from gateway.acp.pool import CodingAgents
from gateway.adapters.registry import ChannelRegistry
from gateway.aio import ShutdownRequest
from gateway.api.events import EventStreams
from gateway.api.program_sessions import ProgramSessions
from gateway.cluster.identity import announced_address, shared_digest
from gateway.cluster.listener import Listener
from gateway.cluster.node import ClusterNode
from gateway.cluster.sign_ins import SIGN_OUT_FACTS, SharedSignIns
from gateway.commands.registry import check_role_commands
from gateway.commands.runner import CommandRunner
from gateway.contract import Address, PeerKind, Sender
from gateway.conversation import Json
from gateway.data_dir import delete_rehearsals
from gateway.errors import CannotStart
from gateway.extraction.archiver import MemoryArchiver
from gateway.files.download import AttachmentDownloads
from gateway.files.store import FileStore
from gateway.http.auth import Auth, load_or_make_token
from gateway.http.server import HttpServer
from gateway.inbound.intake import Intake
from gateway.inbound.lost_spool import LostSpool
from gateway.inbound.recovery import WorkRecovery
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.mcp.server import McpServers
from gateway.metrics import Metrics, watch_lag
from gateway.observability.housekeeping import Housekeeping, SessionFlusher
from gateway.observability.logging import also_hide
from gateway.observability.recent_log import RecentLog
from gateway.observability.status import GatewayStatus
from gateway.openai_door.stateless_runs import StatelessRuns
from gateway.outbound.delivery import Delivery
from gateway.outbound.reactions import WaitingReactions
from gateway.placement import Placement
from gateway.repos.worktrees import WORKSPACE_FACTS, Worktrees
from gateway.routing import is_reachable
from gateway.scheduler import Scheduler
from gateway.schedules import RunOutcomes
from gateway.sessions import SessionManager
from gateway.sessions.keys import parse_key
from gateway.sessions.storage.hidden import HiddenSessions
from gateway.spool import GRANT_FACTS, ResetAttempts, Spool, SpoolBroken, SpoolUnavailable, WrongState
from gateway.tracing import Tracer
from gateway.turns.agents import AgentRegistry
from gateway.turns.approvals import Approvals
from gateway.turns.compaction import Compactor
from gateway.turns.grants import GrantBook
from gateway.turns.runner import TurnRunner
from gateway.turns.titles import TitleWriter
from gateway.turns.usage import Meter

if TYPE_CHECKING:
    from gateway.observability.span_exporter import SpanExporter

log = structlog.get_logger()

SCOPES_AT_ONCE = 1000
"""Scopes that the check for hidden sessions looks at before it lets other tasks run."""

SHARED_FACTS = (FACTS, OWNER_CHAT_FACTS, GRANT_FACTS, MIGRATION_FACTS, TOKEN_FACTS, SIGN_OUT_FACTS)
"""The prefixes of the facts that every node of a cluster has in memory."""

TRACE_TIMEOUT = 3.0
"""Seconds for the spans that are left to be sent. The rest is lost: traces never hold up a shutdown for long."""
FINAL_TIMEOUT = 5.0
"""Seconds for stopped turns to end, and again for committed replies to be sent. The outbox keeps the rest."""


class _Book(Protocol):
    """Facts in memory."""

    def read(self, facts: Mapping[str, str]) -> None: ...


class ProcessControls(Protocol):
    """Controls of the process that runs the daemon. `gatehouse run` has a configuration file and a log."""

    @property
    def config_path(self) -> Path | None: ...

    @property
    def config_destination(self) -> Path:
        """The file that a change of the settings is written to. It may not exist yet."""

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment in which the process was started."""

    @property
    def recent_log(self) -> RecentLog: ...

    async def reload(self, daemon: "Daemon") -> ReloadPlan:
        """Read the configuration file again and apply it. Return the changed keys, and which of them were applied."""

    def set_log_level(self, level: LogLevel) -> None: ...

    def check_config(self) -> dict[str, Json]:
        """Return a `ConfigReport` of `gateway.doctor` about the file as it is now, as JSON. Blocks."""


@dataclass(slots=True, kw_only=True, eq=False)
class Daemon:
    """One gateway on one data directory. `build.open_daemon` makes it."""

    live: Live
    spool: Spool
    store: FileStore
    sessions: SessionManager
    metrics: Metrics
    channels: ChannelRegistry
    migrations: ChatMigrations
    approvals: Approvals
    grants: GrantBook
    downloads: AttachmentDownloads
    reactions: WaitingReactions
    delivery: Delivery
    mcp: McpServers
    agents: AgentRegistry
    meter: Meter
    compactor: Compactor
    memory_archiver: MemoryArchiver
    titles: TitleWriter
    lanes: Lanes[Job]
    readings: Lanes[Job]
    flusher: SessionFlusher
    status: GatewayStatus
    housekeeping: Housekeeping
    turns: TurnRunner
    placement: Placement
    coding_agents: CodingAgents
    commands: CommandRunner
    pairing: Pairing
    tokens: TokenIssuer
    owner_chats: OwnerChats
    intake: Intake
    run_outcomes: RunOutcomes
    scheduler: Scheduler
    programs: ProgramSessions
    events: EventStreams
    stateless: StatelessRuns
    worktrees: Worktrees
    auth: Auth
    sign_ins: SharedSignIns | None
    server: HttpServer
    shutdown: ShutdownRequest
    cluster: ClusterNode | None
    tracer: Tracer | None
    span_exporter: "SpanExporter | None"
    now: Callable[[], datetime]
    is_recovered: bool = False
    """The work of the last run is back in its lanes, so programs may send prompts."""

    def sign_in_link(self) -> str:
        """Return a link to the chat page that signs one browser in, once."""
        return f"{self.server.url}/#code={self.auth.mint_code()}"

    def stop(self) -> None:
        """Request a shutdown. A second call skips the wait for running turns."""
        self.shutdown.request()

    @property
    def shutdown_timeout(self) -> float:
        """Seconds that running turns get to finish after a shutdown request."""
        return self.live.settings.gateway.shutdown_timeout

    async def run(self, ready: Callable[[], None]) -> None:
        """Answer messages until a shutdown is requested. Call `ready` once the channels have started."""
        async with asyncio.TaskGroup() as tasks:
            for lanes in (self.lanes, self.readings, self.delivery.chats, self.reactions.lanes):
                lanes.open(tasks)
            if self.cluster is not None:
                self.cluster.arrivals.lanes.open(tasks)
            self.downloads.open(tasks)
            self.compactor.open(tasks)
            self.titles.open(tasks)
            self.coding_agents.open(tasks)
            self.mcp.start(tasks, self.live.settings.mcp)
            start = partial(self._start, tasks)
            side_tasks = [
                start(self.housekeeping.run, name="flush"),
                start(self._fail_when_spool_breaks, name="spool:broken"),
                start(partial(watch_lag, self.metrics.lag.observe), name="loop:lag"),
                start(self.tokens.run, name="tokens"),
                start(self.stateless.run, name="openai:usage"),
            ]
            if self.span_exporter is not None:
                side_tasks.append(start(self.span_exporter.run, name="traces"))
            await self._recover()
            if self.cluster is not None:
                side_tasks.append(start(self.cluster.run, name="cluster"))
            self.is_recovered = True
            self.channels.start(tasks, self.intake.deliver)
            # A channel without a connection is up after two rounds of the loop: its supervisor's and its own.
            for _ in range(2):
                await asyncio.sleep(0)
            ready()
            side_tasks.append(start(self.agents.warm_up, name="providers:warming_up"))
            side_tasks.append(start(self.programs.run, name="api:idle_sessions"))
            side_tasks.append(start(self.worktrees.run, name="worktrees"))
            side_tasks.append(start(self._delete_rehearsals, name="rehearsals"))
            scheduler = start(self.scheduler.run, name="scheduler")
            archiver = start(self.memory_archiver.run, name="memory:archiver")
            await self.shutdown.wait()
            scheduler.cancel()
            archiver.cancel()
            await self._shut_down()
            for task in side_tasks:
                task.cancel()

    async def _delete_rehearsals(self) -> None:
        """Delete the copies that killed runs of `gatehouse upgrade --check` have left."""
        try:
            for copy in await asyncio.to_thread(delete_rehearsals, self.live.settings.gateway.data_dir):
                log.info("rehearsal_deleted", folder=str(copy))
        except (OSError, CannotStart) as error:
            log.warning("rehearsal_not_deleted", reason=str(error))

    def _start(self, tasks: asyncio.TaskGroup, work: Callable[[], Awaitable[None]], *, name: str) -> asyncio.Task[None]:
        """Start a task whose failure ends the daemon. Then the turns that run go on after the next start."""

        async def run() -> None:
            try:
                await work()
            except Exception:
                # The group cancels the turns next. They must not take that for a /stop.
                self.turns.suspend()
                self.commands.suspend()
                raise

        return tasks.create_task(run(), name=name)

    async def _recover(self) -> None:
        """Load the facts of the previous run, and continue its unfinished work before any message comes in.

        A node of a cluster takes its share of the shards, and continues their work.
        """
        await self.meter.load()
        await self.read_facts()
        if self.cluster is not None:
            self.cluster.listener = Listener(self.live.settings, self.cluster.notified)
            self.cluster.listener.start()
            address = await asyncio.to_thread(announced_address, self.live.settings, self.server.url)
            await self.cluster.start(address, self)
        else:
            self.worktrees.read(await self.spool.facts(WORKSPACE_FACTS))
            await self.recover_work()
        await LostSpool(live=self.live, spool=self.spool, sessions=self.sessions, delivery=self.delivery).report()
        await self._warn_of_hidden_sessions()

    async def read_facts(self, prefixes: Collection[str] = SHARED_FACTS) -> None:
        """Load who has access, and what they have allowed. Another node of the cluster may have changed it."""
        books: dict[str, _Book] = {
            FACTS: self.pairing,
            OWNER_CHAT_FACTS: self.owner_chats,
            GRANT_FACTS: self.grants,
            MIGRATION_FACTS: self.migrations,
            TOKEN_FACTS: self.tokens,
        }
        # In this order: a grant of a person who has lost access is dropped.
        for prefix, book in books.items():
            if prefix in prefixes:
                await self.spool.use_facts(prefix, book.read)
        if self.sign_ins is not None and SIGN_OUT_FACTS in prefixes:
            await self.spool.use_facts(SIGN_OUT_FACTS, self._read_sign_outs)

    def _read_sign_outs(self, facts: Mapping[str, str]) -> None:
        if self.sign_ins is not None:
            self.server.drop_cookies(self.sign_ins.read(facts))

    async def recover_work(self, shards: Sequence[int] | None = None) -> None:
        """Continue the unfinished work of the last run, or of shards that this node has taken over."""
        if shards is not None:
            self.worktrees.take(await self.spool.facts(WORKSPACE_FACTS), shards)
        await self._recovery().run(shards)

    async def recover_turns(self, turns: Collection[str]) -> None:
        """Continue turns that have waited for a node with a label that this one lacks."""
        await self._recovery().run_turns(turns, list(self.spool.shards or ()))

    async def deliver_revived(self) -> None:
        """Send replies that a person has revived at another node of the cluster."""
        for row in await self.spool.take_revived():
            self.delivery.enqueue(row)

    def busy_scopes(self) -> set[str]:
        """Return the scopes with work in memory: a node of a cluster keeps their shards."""
        lanes = (*self.lanes.keys(), *self.coding_agents.sessions)
        scopes = {parse_key(key)[0] for key in lanes} | {*self.readings.keys()} | self.delivery.busy_scopes()
        return scopes if self.cluster is None else scopes | {*self.cluster.arrivals.busy_scopes()}

    def is_drained(self) -> bool:
        """Return whether no turn or command runs, apart from those that wait for a person."""
        is_busy = self.lanes.busy_count or self.readings.busy_count
        return not is_busy and (self.cluster is None or not self.cluster.arrivals.busy_scopes())

    def shards_opened(self) -> None:
        """Look again when the next reminder or schedule is due, for a node of a cluster serves more shards now."""
        self.scheduler.recompute()
        self.memory_archiver.settings_changed()

    def shards_moved(self, shards: Collection[int]) -> None:
        """Forget the worktrees and the waiting messages in shards that other nodes of the cluster own now."""
        self.worktrees.forget(shards)
        self.delivery.forget(shards)

    def suspend_work(self) -> None:
        """Stop all work of a node that may lose its shards. The next owners continue it."""
        self.turns.suspend()
        self.commands.suspend()
        for lanes in (self.lanes, self.readings):
            lanes.stop_all("")
        self.delivery.chats.stop_all("")

    def _recovery(self) -> WorkRecovery:
        return WorkRecovery(
            spool=self.spool,
            sessions=self.sessions,
            lanes=self.lanes,
            readings=self.readings,
            delivery=self.delivery,
            approvals=self.approvals,
            placement=self.placement,
            reactions=self.reactions,
            metrics=self.metrics,
            run_outcomes=self.run_outcomes,
            tracer=self.tracer,
            max_age=timedelta(seconds=self.live.settings.gateway.max_backlog_age),
            now=self.now(),
        )

    async def _warn_of_hidden_sessions(self) -> None:
        """Log how many sessions no message gets to, because the settings that form their scopes have changed."""
        by_scope: dict[str, int] = {}
        for number, scope in enumerate(self.sessions.scopes()):
            if number % SCOPES_AT_ONCE == 0:
                await asyncio.sleep(0)
            if not is_reachable(self.live.settings, scope):
                by_scope[scope] = len(self.sessions.list(scope)) + self.sessions.archived_count(scope)
        by_scope = {scope: number for scope, number in by_scope.items() if number}
        if hidden := HiddenSessions(by_scope=by_scope):
            log.warning("sessions_hidden", sessions=sum(by_scope.values()), scopes=len(by_scope), hint=str(hidden))

    async def _fail_when_spool_breaks(self) -> None:
        """End the daemon when the spool cannot be written. The service manager restarts it, and it checks the disk."""
        await self.spool.broken.wait()
        raise SpoolBroken(self.spool.trouble or "The spool can't be written.")

    async def reload(self, new: Settings) -> ReloadPlan:
        """Apply new settings, and return what was applied and what was not. Raises, with nothing changed, on a mistake.

        Access comes first: from the moment when the settings change, a person without access gets nothing more.
        """
        old = self.live.settings
        # Everything that can fail comes first.
        token = await asyncio.to_thread(load_or_make_token, old.gateway.data_dir, new.http.token)
        channels = self.channels.prepare(new)
        plan = plan_reload(old, new, channels.fixed)
        settings = plan.settings
        check_role_commands(settings)
        agents = await asyncio.to_thread(AgentRegistry, settings, self.mcp)
        await agents.warm_up()

        self.live.settings = settings
        if self.cluster is not None:
            self.cluster.lease.config = shared_digest(settings)
        self.coding_agents.end_removed()
        if self.auth.replace_token(token):
            also_hide(token)
            self.server.drop_owners()
        await self._shut_out(named_people(old) - named_people(settings))
        await self.channels.apply(channels)
        self.agents.swap(agents)
        self.store.budget = settings.files.max_stored_bytes
        self.sessions.settings = settings.session
        for lanes in (self.lanes, self.readings):
            lanes.max_waiting = settings.gateway.max_queued_per_session
            lanes.max_total = settings.gateway.max_queued
        self.delivery.channels_changed()
        self.scheduler.recompute()
        self.memory_archiver.settings_changed()
        await self.mcp.reload(settings.mcp)
        await agents.aclose()
        if plan.restart_needed:
            log.warning("restart_needed", keys=list(plan.restart_needed))
        await self._warn_of_hidden_sessions()
        return plan

    async def _shut_out(self, people: Collection[Person]) -> None:
        """Stop the work of people who have lost access, and issue them no pairing code for a day."""
        lost = [
            person
            for person in people
            if not may_talk(
                self.live,
                Address(channel=person.channel, account=person.account, kind=PeerKind.DIRECT, peer=person.sender),
                Sender(id=person.sender),
            )
        ]
        try:
            await self.pairing.shut_out(lost)
        except SpoolUnavailable as error:  # They have lost access. Only a restart would forget the waiting time.
            log.warning("access_removal_not_stored", reason=str(error))

    async def _shut_down(self) -> None:
        """Finish or suspend all work. `build.open_daemon` closes the HTTP server, the sessions and the spool after it.

        A second shutdown request skips the waits.
        """
        log.info("shutdown_started", running=self.lanes.running, waiting=self.lanes.waiting)
        # 1. Accept nothing more, and let running turns and commands finish. A node of a cluster gives everything else
        #    to the other nodes at once, and passes new messages on to them.
        self.intake.close()
        self.server.end_connections()
        if self.cluster is not None:
            await self.shutdown.wait_for(self.cluster.leave(self.shutdown_timeout), self.shutdown_timeout)
        await self.shutdown.wait_for(self._drained(), self.shutdown_timeout)
        # 2. Stop the turns that are still running. Suspended turns continue after the next start, and so do waiting
        #    messages, which keep their reactions until then.
        self.reactions.lanes.stop_all("")
        suspended = self.turns.suspend()
        self.commands.suspend()
        self.compactor.stop()
        self.titles.stop()
        self.stateless.stop()
        self.lanes.stop_all("")
        self.readings.stop_all("")
        await self.shutdown.wait_for(self._drained(), FINAL_TIMEOUT)
        await self.coding_agents.stop()
        self.downloads.close()
        # 3. Send the replies that are committed.
        await self.shutdown.wait_for(self.delivery.chats.drained(), FINAL_TIMEOUT)
        self.lanes.abort()
        self.readings.abort()
        self.delivery.chats.stop_all("")
        if self.cluster is not None:
            self.cluster.arrivals.lanes.stop_all("")
        # 4. Write everything down. A suspended turn did not crash, so its attempt does not count.
        suspended += self.commands.suspended
        with suppress(SpoolUnavailable, WrongState):  # Then the attempt counts after all; each turn has a few.
            await self.spool.commit(*(ResetAttempts(turn=turn) for turn in suspended))
        await self.tokens.save_last_uses()
        await self.stateless.store_usage()
        await self.flusher.flush()
        if self.cluster is not None:
            await self.cluster.release()
        # 5. Disconnect.
        if self.cluster is not None and self.cluster.listener is not None:
            self.cluster.listener.stop()
        self.events.close()
        await self.channels.stop()
        await self.mcp.stop()
        if self.span_exporter is not None:
            await self.shutdown.wait_for(self.span_exporter.flush(), TRACE_TIMEOUT)
        log.info("shutdown_finished", suspended=len(suspended))

    async def _drained(self) -> None:
        await self.lanes.drained()
        await self.readings.drained()
        await self.stateless.drained()
