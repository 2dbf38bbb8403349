"""The composition root: opens the stores and builds every part of the daemon from those before it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from config import LogLevel, ReloadPlan, Settings
from config.types import PROGRAM_CHANNELS
from gateway.access.chat_migrations import ChatMigrations
from gateway.access.guests import Applicant
from gateway.access.owner_chats import OwnerChats
from gateway.access.pairing import Pairing, UnknownSenders
from gateway.access.rules import Live, has_chat_owner, may_receive
from gateway.access.tokens import TOKEN_FACTS, TokenBook, TokenIssuer
from gateway.acp.homes import AgentHomes
from gateway.acp.pool import CodingAgents
from gateway.adapters.registry import ChannelRegistry
from gateway.adapters.services import ChannelStore, SessionBrowser, post_safely
from gateway.admin.routes import Operator, backup_routes, backups, doctor_routes, pairing_routes, spool_routes
from gateway.admin.session_move import SessionMover
from gateway.admin.session_routes import LocalArchive, session_routes
from gateway.admin.token_routes import token_routes
from gateway.admin_api.agents import AgentTools
from gateway.admin_api.approvals import Decisions
from gateway.admin_api.dead_letters import LetterRoom
from gateway.admin_api.events import GatewayEvents
from gateway.admin_api.nodes import OtherNodes
from gateway.admin_api.overview import GatewayWatch
from gateway.admin_api.replies import OwnerReplies
from gateway.admin_api.routes import (
    agent_operations,
    decision_operations,
    letter_operations,
    reply_operations,
    settings_operations,
    system_operations,
    watch_operations,
)
from gateway.admin_api.settings import ConfigChanges
from gateway.admin_api.system import GatewayControl
from gateway.aio import ShutdownRequest
from gateway.api.description import description_routes
from gateway.api.events import EventStreams
from gateway.api.overview import Overview
from gateway.api.program_sessions import ProgramSessions
from gateway.api.programs import ProgramChannel
from gateway.api.prompts import Prompts
from gateway.api.routes import api_operations
from gateway.api.schedules import ScheduleApi
from gateway.api.sessions import SessionApi
from gateway.cluster.arrivals import ArrivalQueue
from gateway.cluster.identity import node_lease
from gateway.cluster.node import ClusterNode
from gateway.cluster.posts import Posts
from gateway.cluster.sign_ins import SharedSignIns
from gateway.commands.agents import AgentCommands
from gateway.commands.approvals import ApprovalCommands
from gateway.commands.archive import ArchiveCommands
from gateway.commands.deletion import SessionDeletion
from gateway.commands.info import InfoCommands
from gateway.commands.memory import MemoryCommands
from gateway.commands.pairing import PairingCommands
from gateway.commands.registry import check_role_commands
from gateway.commands.reminders import ReminderCommands
from gateway.commands.repos import RepoCommands
from gateway.commands.runner import CommandRunner
from gateway.commands.schedules import ScheduleCommands
from gateway.commands.sessions import SessionCommands
from gateway.commands.turns import TurnCommands
from gateway.daemon import SHARED_FACTS, Daemon, ProcessControls
from gateway.data_dir import DataDirLock, prepare_data_dir, require_complete_restore
from gateway.database.node_lease import NodeLease
from gateway.descriptors import connections_within, descriptor_limit
from gateway.documents.conversion import DocumentConverter
from gateway.extraction.archiver import MemoryArchiver
from gateway.files.download import AttachmentDownloads
from gateway.files.migration import migrate_workspaces
from gateway.files.shared import shared_files
from gateway.files.store import FileStore
from gateway.files.uploads import FileRoutes
from gateway.http.auth import Auth, load_or_make_token
from gateway.http.forwarding import DEADLINE, Forwarder
from gateway.http.responses import HttpLimits
from gateway.http.routes import core_routes
from gateway.http.server import HttpServer
from gateway.inbound.edits import MessageEdits
from gateway.inbound.inbox import Dispatcher, Inbox
from gateway.inbound.intake import Intake
from gateway.job import Job, JobSlots
from gateway.lanes import Lanes
from gateway.mcp.server import McpServers
from gateway.memory.queue import MemoryChanges, MemoryQueue, leaving_operations
from gateway.memory.store import delete_leftovers
from gateway.metrics import Metrics
from gateway.observability.housekeeping import DiskSpace, Housekeeping, SessionFlusher
from gateway.observability.logging import also_hide
from gateway.observability.prometheus import metrics_routes
from gateway.observability.recent_log import RecentLog
from gateway.observability.status import GatewayStatus
from gateway.openai_door.door import Door
from gateway.openai_door.routes import door_routes
from gateway.openai_door.session_choice import SessionChooser
from gateway.openai_door.session_turns import SessionTurns
from gateway.openai_door.stateless_runs import StatelessRuns
from gateway.outbound.delivery import Delivery
from gateway.outbound.long_replies import LongReplies, max_reply_parts
from gateway.outbound.reactions import WaitingReactions
from gateway.placement import Placement
from gateway.reminders import Reminders, ReminderTimetable
from gateway.repos.git import Git
from gateway.repos.repositories import Repositories
from gateway.repos.worktrees import Worktrees
from gateway.sandbox.program_process import end_orphans
from gateway.scheduler import Scheduler
from gateway.schedules import RunOutcomes, Schedules, ScheduleTimetable
from gateway.schedules.checks import Checks
from gateway.sessions import SessionManager
from gateway.shards import Shards
from gateway.spool import AddToOutbox, Spool, SpoolUnavailable
from gateway.storage import START_TIMEOUT, database_name, open_storage
from gateway.tracing import Tracer
from gateway.turns.agents import AgentRegistry
from gateway.turns.approvals import ApprovalGate, Approvals
from gateway.turns.busy import BusyPolicy
from gateway.turns.compaction import Compactor
from gateway.turns.context import TurnContext
from gateway.turns.grants import GrantBook
from gateway.turns.recorder import TurnRecorder
from gateway.turns.revocation import Revocation
from gateway.turns.runner import TurnRunner
from gateway.turns.titles import TitleWriter
from gateway.turns.usage import Meter

if TYPE_CHECKING:
    from gateway.observability.span_exporter import SpanExporter

utc_now = partial(datetime.now, UTC)

TAKEOVER_SECONDS = 4.0
"""Seconds that a takeover may need after the lease of a node has expired, while requests wait for the next owner."""


@asynccontextmanager
async def open_daemon(
    settings: Settings,
    *,
    listen: bool = True,
    now: Callable[[], datetime] = utc_now,
    shutdown: ShutdownRequest | None = None,
    controls: ProcessControls | None = None,
) -> AsyncIterator[Daemon]:
    """Lock the data directory, recover the stores, listen on the ports, and yield a daemon that is ready to `run`.

    With `listen=False` only the control socket is served. `controls` are None where the daemon is embedded in another
    program: then it cannot reload its configuration.
    """
    directory = settings.gateway.data_dir
    prepare_data_dir(directory)
    async with AsyncExitStack() as closing:
        closing.enter_context(DataDirLock(directory))
        require_complete_restore(directory)
        await asyncio.to_thread(end_orphans)
        await asyncio.to_thread(delete_leftovers, directory)
        lease = node_lease(settings) if settings.cluster.enabled else None
        spool, storage = await closing.enter_async_context(
            open_storage(settings, max_wait=START_TIMEOUT, shutdown=shutdown, lease=lease)
        )
        if lease is not None:
            spool.shards, spool.shared_facts = Shards(), SHARED_FACTS
            spool.safe_seconds = lease.safe_seconds
        store = FileStore(directory / "files", settings.files.max_stored_bytes, shared_files(settings))
        await store.open()
        homes = AgentHomes(directory / "agents")

        async def remove_files(session: str) -> bool:
            return await store.remove_session(session) and await homes.remove(session)

        queue = MemoryQueue(spool)
        sessions: SessionManager
        sessions = await SessionManager.open(
            storage,
            settings.session,
            now,
            journal=spool,
            on_leaving=queue.note_leaving,
            leaving_operations=partial(leaving_operations, lambda: sessions.settings),
            remove_files=remove_files,
            shards=spool.shards,
        )
        closing.push_async_callback(sessions.close)
        if lease is None:  # A node of a cluster reads the sessions of a shard when it takes that.
            await sessions.recover()
            for folders in (store, homes):
                await folders.remove_orphans(
                    (meta.key for scope in sessions.scopes() for meta in sessions.list(scope)),
                    archived=await sessions.archive.transcript_names(),
                )
            await migrate_workspaces(settings, spool=spool, store=store, sessions=sessions)
        elif not await asyncio.to_thread(homes.are_empty):
            with suppress(SpoolUnavailable):  # The next start does it.
                await homes.remove_orphans(await sessions.stored_keys())
        token = await asyncio.to_thread(load_or_make_token, directory, settings.http.token)
        also_hide(token)
        daemon = build_daemon(
            settings,
            spool=spool,
            store=store,
            sessions=sessions,
            homes=homes,
            auth=Auth(token, is_shared=lease is not None),
            listen=listen,
            now=now,
            shutdown=shutdown,
            controls=controls,
            lease=lease,
            memory_queue=queue,
        )
        # Before the server listens: a program whose token is not known yet would be refused for good.
        daemon.live.token_book.read(await spool.facts(TOKEN_FACTS))
        closing.push_async_callback(daemon.agents.aclose)
        await closing.enter_async_context(daemon.server)
        yield daemon


def build_daemon(  # noqa: PLR0915 - the composition root is one function.
    settings: Settings,
    *,
    spool: Spool,
    store: FileStore,
    sessions: SessionManager,
    homes: AgentHomes,
    auth: Auth,
    listen: bool = True,
    now: Callable[[], datetime] = utc_now,
    shutdown: ShutdownRequest | None = None,
    controls: ProcessControls | None = None,
    lease: NodeLease | None = None,
    memory_queue: MemoryQueue | None = None,
) -> Daemon:
    """Build every part, each from those before it. The caller opens and closes the stores and the server."""
    shutdown = shutdown or ShutdownRequest()
    # These refer to parts that refer to them, so they are looked up when they are used.
    dispatcher: Dispatcher
    server: HttpServer
    daemon: Daemon
    coding_agents: CodingAgents
    memory_archiver: MemoryArchiver
    intake: Intake
    cluster: ClusterNode | None = None
    forwarder: Forwarder | None = None
    sign_ins: SharedSignIns | None = None

    live = Live(settings, token_book=TokenBook(now))
    metrics = Metrics()
    tracer: Tracer | None = None
    span_exporter: SpanExporter | None = None
    if settings.tracing.endpoint is not None:
        # Imported only if it is used. Without it, a gateway has no part that knows of traces but `NO_SPAN`.
        from gateway.observability import span_exporter as exporter  # noqa: PLC0415 - see above.

        span_exporter = exporter.SpanExporter(exporter.Collector.of(settings), metrics)
        tracer = Tracer(span_exporter.add, sample_ratio=settings.tracing.sample_ratio)
    placement = Placement(live, spool, settings.cluster.labels)
    repos = Repositories(live, placement)

    # Channels and outbound messages.
    migrations = ChatMigrations(live, spool)
    approvals = Approvals(live, sessions)
    grants = GrantBook(live, now=now)
    browser = SessionBrowser(live, sessions, approvals, spool)
    posts = Posts(lambda: spool.safe_seconds_left)
    channels = ChannelRegistry(
        browser,
        migrations.record,
        partial(ChannelStore, spool),
        post_safely,
        leads=None if lease is None else posts.lead,
        max_poll_seconds=None if lease is None else lease.seconds / 4,
    )
    documents = DocumentConverter(lambda: live.settings.tools)
    downloads = AttachmentDownloads(
        live=live, store=store, sessions=sessions, channels=channels.by_identity, documents=documents
    )
    uploads = FileRoutes(store, lambda: live.settings.files.max_bytes, now)
    reactions = WaitingReactions(channels.by_identity)
    delivery = Delivery(
        channels.by_identity,
        spool,
        now=now,
        file_path=store.path,
        metrics=metrics,
        may_receive=partial(may_receive, live),
        max_parts=partial(max_reply_parts, live),
        tracer=tracer,
    )

    # Agents, and their costs.
    mcp = McpServers()
    check_role_commands(settings)
    agents = AgentRegistry(settings, mcp)
    meter = Meter(live, spool, now=now, metrics=metrics)
    compactor = Compactor(sessions=sessions, meter=meter, spool=spool)
    titles = TitleWriter(sessions=sessions, meter=meter, spool=spool)

    # Lanes: one for the turns of each session, and one for the slow commands of each scope.
    open_lanes = partial(
        Lanes[Job],
        lambda job: dispatcher.run(job),  # noqa: PLW0108 - the dispatcher is made further down.
        max_waiting=settings.gateway.max_queued_per_session,
        max_total=settings.gateway.max_queued,
        on_removed=lambda job: reactions.remove(job.turn),
    )
    lanes, readings = open_lanes(name="lane"), open_lanes(name="reading")

    # Repositories, and the folders in them that sessions work in.
    worktrees = Worktrees(
        data_dir=settings.gateway.data_dir,
        repos=repos,
        git=Git(live),
        sessions=sessions,
        spool=spool,
        is_busy=lanes.is_busy,
    )

    # Status, metrics and periodic work.
    flusher = SessionFlusher(sessions, metrics.flushes.observe)
    disk = DiskSpace(settings.gateway.data_dir)
    status = GatewayStatus(
        channels=channels,
        sessions=sessions,
        spool=spool,
        engine=settings.storage.engine,
        database=database_name(settings.storage),
        flusher=flusher,
        disk=disk,
        lanes=lanes,
        replies=delivery.chats,
        delivery=delivery.health,
        mcp=mcp,
        agents=agents,
        coding_agents=lambda: coding_agents.running,
        metrics=metrics,
        is_stopping=shutdown.is_requested,
        now=now,
        cluster=lambda: None if cluster is None else cluster.report(),
        memory_archiver=lambda: memory_archiver,
    )
    housekeeping = Housekeeping(
        live=live,
        flusher=flusher,
        disk=disk,
        sessions=sessions,
        lanes=lanes,
        spool=spool,
        uploads=uploads,
        grants=grants,
        now=now,
    )

    # Turns and commands.
    schedules_changed = asyncio.Event()
    reminders = Reminders(live, spool, schedules_changed, now=now)
    owner_chats = OwnerChats(live, spool, now=now)
    schedules = Schedules(live, spool, schedules_changed, now=now)
    run_outcomes = RunOutcomes(live, spool, delivery, owner_chats, metrics, schedules_changed, now=now)
    busy = BusyPolicy(live, lanes)
    long_replies = LongReplies(live, channels.by_identity, store, sessions, delivery.streamed_parts)
    recorder = TurnRecorder(
        live=live,
        sessions=sessions,
        spool=spool,
        delivery=delivery,
        lanes=lanes,
        busy=busy,
        meter=meter,
        metrics=metrics,
        long_replies=long_replies,
        run_outcomes=run_outcomes,
    )
    slots = JobSlots(settings.gateway.max_parallel_turns)
    context = TurnContext(
        live=live,
        agents=agents,
        mcp=mcp,
        sessions=sessions,
        meter=meter,
        compactor=compactor,
        store=store,
        spool=spool,
        now=now,
    )
    memory_queue = memory_queue or MemoryQueue(spool)
    memory_changes = MemoryChanges(spool, memory_queue, context)
    memory_archiver = MemoryArchiver(
        live=live,
        spool=spool,
        sessions=sessions,
        agents=agents,
        meter=meter,
        context=context,
        queue=memory_queue,
        changes=memory_changes,
        metrics=metrics,
        is_busy=lanes.is_busy,
        now=now,
    )
    coding_agents = CodingAgents(live=live, sessions=sessions, store=store, homes=homes, worktrees=worktrees)
    turns = TurnRunner(
        live=live,
        sessions=sessions,
        context=context,
        recorder=recorder,
        busy=busy,
        approvals=approvals,
        gate=ApprovalGate(
            live=live, approvals=approvals, grants=grants, recorder=recorder, delivery=delivery, lanes=lanes
        ),
        delivery=delivery,
        reactions=reactions,
        files=downloads,
        coding_agents=coding_agents,
        reminders=reminders,
        schedules=schedules,
        compactor=compactor,
        titles=titles,
        placement=placement,
        slots=slots,
    )
    revocation = Revocation(live, lanes, readings, turns, approvals)

    def ask_owners(applicant: Applicant) -> list[AddToOutbox]:
        questions = owner_chats.questions(applicant)
        return [part for each in questions for part in delivery.compose(each, key=f"notice-{uuid4().hex}")]

    pairing = Pairing(
        live.guest_book,
        spool,
        now=now,
        post=delivery.post,
        on_revoked=revocation.enforce,
        has_owner=partial(has_chat_owner, live),
        ask_owners=ask_owners,
        also_ends=grants.remove_people,
    )

    def end_token(token: str) -> None:
        server.drop_token(token)
        revocation.enforce()

    tokens = TokenIssuer(
        live.token_book,
        spool,
        settings=lambda: live.settings,
        now=now,
        on_ended=end_token,
        also_ends=grants.remove_people,
    )
    archive = ArchiveCommands(sessions, lanes, now=now)
    deletion = SessionDeletion(sessions, lanes, spool, delivery, forget=memory_changes.apply)
    repo_commands = RepoCommands(
        live=live, sessions=sessions, repos=repos, git=Git(live), worktrees=worktrees, long_replies=long_replies
    )
    session_commands = SessionCommands(live, sessions, lanes, deletion, archive, repos, repo_commands.describe, now=now)
    commands = CommandRunner(
        {
            **session_commands.handlers(),
            **repo_commands.handlers(),
            **archive.handlers(),
            **AgentCommands(
                live=live,
                sessions=sessions,
                agents=agents,
                mcp=mcp,
                compactor=compactor,
                repos=repos,
                start_session=session_commands.start,
            ).handlers(),
            **ReminderCommands(reminders, now=now).handlers(),
            **MemoryCommands(live, context, memory_changes).handlers(),
            **ScheduleCommands(schedules, spool).handlers(),
            **ApprovalCommands(approvals, grants, long_replies).handlers(),
            **TurnCommands(sessions, lanes, readings, spool, turns).handlers(),
            **InfoCommands(
                live=live,
                sessions=sessions,
                agents=agents,
                approvals=approvals,
                meter=meter,
                spool=spool,
                describe_gateway=status.sentence,
                restart=shutdown.request_restart,
            ).handlers(),
            **PairingCommands(live, pairing, now=now).handlers(),
        },
        live=live,
        spool=spool,
        delivery=delivery,
        metrics=metrics,
        now=now,
        slots=slots,
    )
    dispatcher = Dispatcher(turns, commands, reactions, tracer)

    # Inbound messages.
    inbox = Inbox(
        live=live,
        spool=spool,
        sessions=sessions,
        lanes=lanes,
        readings=readings,
        delivery=delivery,
        reactions=reactions,
        downloads=downloads,
        repos=repos,
        now=now,
        tracer=tracer,
    )
    shards = Shards() if spool.shards is None else spool.shards
    arrivals = ArrivalQueue(spool, shards, placement, lambda inbound: intake.deliver(inbound))  # noqa: PLW0108 - made below.
    intake = Intake(
        live=live,
        spool=spool,
        sessions=sessions,
        inbox=inbox,
        edits=MessageEdits(spool, sessions, lanes, now=now),
        commands=commands,
        approvals=approvals,
        unknown_senders=UnknownSenders(live, pairing, now=now),
        owner_chats=owner_chats,
        repos=repos,
        placement=placement,
        metrics=metrics,
        now=now,
        catch_up=None if lease is None else arrivals.catch_up,
    )
    if lease is not None:
        cluster = ClusterNode(
            lease=lease,
            spool=spool,
            shards=shards,
            sessions=sessions,
            arrivals=arrivals,
            posts=posts,
            placement=placement,
            on_left=lambda url: forwarder.drop(url) if forwarder is not None else None,
        )
        sign_ins = SharedSignIns(auth, spool, now=now)
        forwarder = Forwarder(
            cluster.locate,
            lambda: auth.token,
            moves=lambda: shards.moves,
            deadline=max(DEADLINE, lease.seconds + TAKEOVER_SECONDS),
        )
    channels.open(settings)

    # The API for programs.
    programs = ProgramSessions(
        live=live,
        sessions=sessions,
        lanes=lanes,
        spool=spool,
        delivery=delivery,
        intake=intake,
        repos=repos,
        placement=placement,
        now=now,
    )
    for name in PROGRAM_CHANNELS:
        channels.host(ProgramChannel(name, programs.record_notice))
    events = EventStreams(sessions, turns.unwritten_text)
    archive_routes = LocalArchive(
        sessions, SessionMover(lambda: live.settings, sessions, spool, store, lanes.is_busy), deletion.delete, context
    )
    prompts = Prompts(intake, spool, now=now)
    operations = api_operations(
        SessionApi(
            live=live,
            sessions=sessions,
            programs=programs,
            prompts=prompts,
            events=events,
            approvals=approvals,
            archive=archive_routes,
            uploads=uploads,
            lanes=lanes,
            repos=repos,
        ),
        ScheduleApi(live, schedules, spool),
        Overview(
            live=live,
            sessions=sessions,
            agents=agents,
            repos=repos,
            spool=spool,
            lanes=lanes,
            health=status.health,
            now=now,
        ),
    )

    # The API for administration.
    async def reload() -> ReloadPlan:
        assert controls is not None, "without controls there is no route"  # noqa: S101 - for mypy
        return await controls.reload(daemon)

    config_path: Path | None = controls.config_path if controls is not None else None
    backup = backups(settings.gateway.data_dir, spool, sessions, now=now, config=config_path)
    nodes = OtherNodes(
        "" if lease is None else lease.name, forwarder, lambda: {} if cluster is None else cluster.others()
    )
    watch = GatewayWatch(
        status=status,
        sessions=sessions,
        approvals=approvals,
        pairing=pairing,
        spool=spool,
        metrics=metrics,
        recent_log=RecentLog() if controls is None else controls.recent_log,
        nodes=nodes,
        unwritten_text=turns.unwritten_text,
        can_restart=controls is not None,
        now=now,
    )
    operations += watch_operations(
        watch,
        GatewayEvents(
            watch=watch,
            sessions=sessions,
            approvals=approvals,
            pairing=pairing,
            live=live,
            is_token_valid=lambda token: live.token_book.find(token) is not None,
            is_stopping=shutdown.is_requested,
            is_in_cluster=lease is not None,
        ),
    )
    operations += decision_operations(
        Decisions(
            live=live,
            sessions=sessions,
            approvals=approvals,
            grants=grants,
            pairing=pairing,
            spool=spool,
            nodes=nodes,
        )
    )
    operations += letter_operations(LetterRoom(spool=spool, delivery=delivery, intake=intake, now=now))
    operations += settings_operations(
        ConfigChanges(
            live,
            controls.config_destination if controls is not None else None,
            controls.environ if controls is not None else {},
            reload,
        )
    )

    operations += system_operations(
        GatewayControl(
            live=live,
            channels=channels.by_identity,
            mcp=mcp,
            archive=archive_routes,
            spool=spool,
            backup=backup,
            check_config=controls.check_config if controls is not None else None,
            restart=shutdown.request_restart if controls is not None else None,
            now=now,
        )
    )
    operations += reply_operations(
        OwnerReplies(live=live, sessions=sessions, programs=programs, lanes=lanes, delivery=delivery)
    )
    operations += agent_operations(
        AgentTools(
            live=live,
            agents=agents,
            mcp=mcp,
            context=context,
            locks=turns.workspace_locks,
            documents=documents,
            metrics=metrics,
        )
    )

    stateless = StatelessRuns(
        live=live,
        agents=agents,
        mcp=mcp,
        context=context,
        meter=meter,
        spool=spool,
        placement=placement,
        slots=slots,
        locks=turns.workspace_locks,
        documents=documents,
        now=now,
    )
    session_turns = SessionTurns(
        live=live,
        sessions=sessions,
        programs=programs,
        prompts=prompts,
        repos=repos,
        spool=spool,
        lanes=lanes,
        uploads=uploads,
        unwritten_text=turns.unwritten_text,
        is_stopping=shutdown.is_requested,
        now=now,
    )
    door = Door(chooser=SessionChooser(live, agents), turns=session_turns, stateless=stateless)

    # HTTP. The routes of channels are fixed from here on.
    def set_log_level(level: LogLevel) -> None:
        assert controls is not None, "without controls there is no route"  # noqa: S101 - for mypy
        controls.set_log_level(level)

    operator = Operator(reload=reload, set_log_level=set_log_level) if controls is not None else Operator()
    server = HttpServer(
        settings.http,
        auth=auth,
        routes=[
            *core_routes(auth=auth, health=status.health, url=lambda: server.url, sign_ins=sign_ins),
            *operator.routes(),
            *status.routes(),
            *doctor_routes(
                lambda: live.settings,
                channels.by_identity,
                mcp,
                controls.check_config if controls is not None else None,
            ),
            *metrics_routes(status, metrics, is_open=settings.http.open_metrics),
            *spool_routes(spool, delivery),
            *pairing_routes(pairing, live),
            *token_routes(tokens),
            *session_routes(archive_routes),
            *(operation.route() for operation in operations),
            *description_routes(operations),
            *door_routes(door, sessions, programs, created=int(now().timestamp())),
            *backup_routes(backup),
            *uploads.routes(),
            *channels.routes(),
        ],
        control_path=settings.gateway.data_dir / "control.sock",
        find_token=live.token_book.identify,
        knows_token=lambda token: live.token_book.find(token) is not None,
        rate_limit=lambda: live.settings.api.rate_limit,
        is_ready=lambda: daemon.is_recovered,
        listen=listen,
        limits=HttpLimits.within(connections_within(descriptor_limit(), is_in_cluster=lease is not None)),
        forwarder=forwarder,
    )
    daemon = Daemon(
        live=live,
        spool=spool,
        store=store,
        sessions=sessions,
        metrics=metrics,
        channels=channels,
        migrations=migrations,
        approvals=approvals,
        grants=grants,
        downloads=downloads,
        reactions=reactions,
        delivery=delivery,
        mcp=mcp,
        agents=agents,
        meter=meter,
        compactor=compactor,
        memory_archiver=memory_archiver,
        titles=titles,
        lanes=lanes,
        readings=readings,
        flusher=flusher,
        status=status,
        housekeeping=housekeeping,
        turns=turns,
        placement=placement,
        coding_agents=coding_agents,
        commands=commands,
        pairing=pairing,
        tokens=tokens,
        owner_chats=owner_chats,
        intake=intake,
        run_outcomes=run_outcomes,
        scheduler=Scheduler(
            spool,
            [
                ReminderTimetable(live, spool, delivery, reminders, now=now),
                ScheduleTimetable(
                    live,
                    spool,
                    delivery,
                    schedules,
                    run_outcomes,
                    Checks(lambda: live.settings, documents),
                    intake.accept_scheduled,
                    metrics,
                    now=now,
                ),
            ],
            schedules_changed,
            now=now,
        ),
        programs=programs,
        events=events,
        stateless=stateless,
        worktrees=worktrees,
        auth=auth,
        sign_ins=sign_ins,
        server=server,
        shutdown=shutdown,
        cluster=cluster,
        tracer=tracer,
        span_exporter=span_exporter,
        now=now,
    )
    return daemon
