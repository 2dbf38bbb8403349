"""The way from a message to its answer: intake, turns, errands; and the alarm, which speaks unasked."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from gateway.access.live import Live, Moves
from gateway.access.pairing import Pairing, Strangers
from gateway.adapters.registry import ChannelRegistry
from gateway.adapters.services import ChannelStore, SessionBrowser
from gateway.commands import COMMANDS, Desk
from gateway.commands.runner import Errands
from gateway.files.room import Files
from gateway.files.store import FileStore
from gateway.files.uploads import FileRoutes
from gateway.inbound.dispatcher import Work
from gateway.inbound.inbox import Queueing
from gateway.inbound.intake import Admission, Intake
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.mcp.registry import McpServers
from gateway.metrics import Metrics
from gateway.observability.housekeeping import DiskSpace, Housekeeping, RunningJobs, SessionFlusher
from gateway.observability.status import Status
from gateway.outbound.delivery import Delivery
from gateway.outbound.reactions import WaitingReactions
from gateway.reminders import Reminders, ReminderScheduler
from gateway.sessions import SessionManager
from gateway.spool import Spool
from gateway.turns.agents import AgentRegistry
from gateway.turns.approvals import ApprovalGate, Approvals
from gateway.turns.busy import BusyPolicy
from gateway.turns.compaction import Compactor
from gateway.turns.context import TurnContext
from gateway.turns.recorder import TurnRecorder
from gateway.turns.runner import TurnRunner
from gateway.turns.usage import Meter


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    live: Live
    spool: Spool
    sessions: SessionManager
    store: FileStore
    metrics: Metrics
    now: Callable[[], datetime]


@dataclass(slots=True, kw_only=True)
class Agents:
    mcp: McpServers
    meter: Meter
    compactions: Compactor
    roster: AgentRegistry
    """A reload puts another in its place, so others ask for it by `current` whenever they need it."""

    def current(self) -> AgentRegistry:
        return self.roster


def open_agents(ground: Ground) -> Agents:
    mcp = McpServers()
    meter = Meter(ground.live, ground.spool, now=ground.now, metrics=ground.metrics)
    return Agents(
        mcp=mcp,
        meter=meter,
        compactions=Compactor(sessions=ground.sessions, meter=meter, spool=ground.spool),
        roster=AgentRegistry(ground.live.settings, mcp),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chats:
    moves: Moves
    approvals: Approvals
    channels: ChannelRegistry
    signs: WaitingReactions
    files: Files
    uploads: FileRoutes
    delivery: Delivery


def open_chats(ground: Ground) -> Chats:
    """Put together what no channel is needed for; the channels themselves are opened once everything else stands."""
    live, spool = ground.live, ground.spool
    moves = Moves(live, spool)
    approvals = Approvals(live, ground.sessions)
    browser = SessionBrowser(live, ground.sessions, approvals)
    channels = ChannelRegistry(browser, moves.record, partial(ChannelStore, spool))
    files = Files(live, ground.store, channels.by_identity)
    return Chats(
        moves=moves,
        approvals=approvals,
        channels=channels,
        signs=WaitingReactions(channels.by_identity),
        files=files,
        uploads=FileRoutes(ground.store, lambda: live.settings.files.max_bytes, ground.now),
        delivery=Delivery(channels.by_identity, spool, now=ground.now, file_path=files.path, metrics=ground.metrics),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    intake: Intake
    turns: TurnRunner
    errands: Errands
    work: Work
    alarm: ReminderScheduler


def open_answering(ground: Ground, chats: Chats, agents: Agents, desk: Desk) -> Answering:
    live, delivery = ground.live, chats.delivery
    turns = _turns(ground, chats, agents, desk)
    errands = Errands(live=live, delivery=delivery, desk=desk, is_suspending=lambda: turns.is_suspending)
    return Answering(
        intake=_intake(ground, chats, desk),
        turns=turns,
        errands=errands,
        work=Work(turns, errands, chats.signs),
        alarm=ReminderScheduler(live, ground.spool, delivery, desk.reminders, now=ground.now),
    )


def _turns(ground: Ground, chats: Chats, agents: Agents, desk: Desk) -> TurnRunner:
    live, sessions, delivery, lanes = ground.live, ground.sessions, chats.delivery, desk.lanes
    busy = BusyPolicy(live, lanes)
    recorder = TurnRecorder(
        sessions=sessions,
        spool=ground.spool,
        delivery=delivery,
        lanes=lanes,
        busy=busy,
        meter=agents.meter,
        metrics=ground.metrics,
    )
    return TurnRunner(
        live=live,
        sessions=sessions,
        context=TurnContext(
            live=live,
            agents=agents.current,
            mcp=agents.mcp,
            sessions=sessions,
            meter=agents.meter,
            compactor=agents.compactions,
            files=chats.files,
            now=ground.now,
        ),
        recorder=recorder,
        busy=busy,
        approvals=chats.approvals,
        gate=ApprovalGate(live=live, approvals=chats.approvals, recorder=recorder, delivery=delivery, lanes=lanes),
        delivery=delivery,
        reactions=chats.signs,
        files=chats.files,
        reminders=desk.reminders,
        compactor=agents.compactions,
    )


def _intake(ground: Ground, chats: Chats, desk: Desk) -> Intake:
    strangers = Strangers(ground.live, desk.pairing, now=ground.now)
    return Intake(
        live=ground.live,
        spool=ground.spool,
        delivery=chats.delivery,
        desk=desk,
        admission=Admission(ground.live, strangers, now=ground.now),
        queueing=Queueing(
            live=ground.live,
            spool=ground.spool,
            desk=desk,
            delivery=chats.delivery,
            signs=chats.signs,
            files=chats.files.downloads,
        ),
    )


def open_desk(
    ground: Ground,
    chats: Chats,
    agents: Agents,
    lanes: Lanes[Job],
    readings: Lanes[Job],
    *,
    status: Callable[[], str],
    restart: Callable[[], None],
) -> Desk:
    return Desk(
        sessions=ground.sessions,
        lanes=lanes,
        readings=readings,
        approvals=chats.approvals,
        pairing=Pairing(ground.live.book, ground.spool, now=ground.now, post=chats.delivery.post),
        live=ground.live,
        roster=agents.current,
        mcp=agents.mcp,
        meter=agents.meter,
        reminders=Reminders(ground.live, ground.spool, now=ground.now),
        compactions=agents.compactions,
        commands=COMMANDS,
        status=status,
        restart=restart,
        now=ground.now,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    running_jobs: RunningJobs
    flusher: SessionFlusher
    status: Status
    housekeeping: Housekeeping


def open_watch(
    ground: Ground, chats: Chats, agents: Agents, lanes: Lanes[Job], *, is_stopping: Callable[[], bool]
) -> Watch:
    running_jobs = RunningJobs()
    flusher = SessionFlusher(ground.sessions, ground.metrics.flushes.observe)
    disk = DiskSpace(ground.live.settings.gateway.data_dir)
    return Watch(
        running_jobs=running_jobs,
        flusher=flusher,
        status=Status(
            channels=chats.channels,
            sessions=ground.sessions,
            spool=ground.spool,
            flusher=flusher,
            disk=disk,
            lanes=lanes,
            running_jobs=running_jobs,
            replies=chats.delivery.chats,
            mcp=agents.mcp,
            roster=agents.current,
            metrics=ground.metrics,
            is_stopping=is_stopping,
            now=ground.now,
        ),
        housekeeping=Housekeeping(
            live=ground.live,
            flusher=flusher,
            disk=disk,
            sessions=ground.sessions,
            spool=ground.spool,
            uploads=chats.uploads,
            now=ground.now,
        ),
    )
