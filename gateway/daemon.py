"""The daemon: runs the gateway that `assembly` has put together, and shuts it down in an order you can recite."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta

import structlog

from config import Settings
from gateway.access.guests import FACTS
from gateway.access.live import MOVES, Live
from gateway.adapters.registry import ChannelRegistry
from gateway.admin.routes import Operator, backup_routes, doctor_routes, pairing_routes, spool_routes
from gateway.admin.session_routes import session_routes
from gateway.aio import ShutdownRequest
from gateway.backup.create import Backup
from gateway.backup.restore import require_complete_restore
from gateway.build import Ground, open_agents, open_answering, open_chats, open_desk, open_watch
from gateway.contract import Route
from gateway.data_dir import DataDirLock, prepare_data_dir
from gateway.files.room import drop_orphaned_files, session_file_remover
from gateway.files.store import FileStore
from gateway.http.auth import Auth, load_or_make_token
from gateway.http.routes import Health, core_routes
from gateway.http.server import HttpServer
from gateway.inbound.recovery import TakingUp
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.metrics import Metrics, watch_lag
from gateway.observability.logging import also_hide
from gateway.observability.prometheus import metrics_routes
from gateway.observability.status import Status
from gateway.reminders import ReminderScheduler
from gateway.sessions import SessionManager
from gateway.spool import ResetAttempts, Spool, SpoolBroken, SpoolFull, WrongState
from gateway.turns.agents import AgentRegistry

log = structlog.get_logger()


def keep_fixed_settings(old: Settings, new: Settings) -> tuple[Settings, list[str]]:
    """Return `new` with the settings of `old` that need a restart, and the keys of those that differ. Logs them."""
    kept = {"data_dir": old.gateway.data_dir, "max_parallel_turns": old.gateway.max_parallel_turns}
    if new.gateway.data_dir != old.gateway.data_dir and new.gateway.workspace_root.is_relative_to(new.gateway.data_dir):
        kept["workspace_root"] = old.gateway.workspace_root
    wanted = {f"gateway.{name}": getattr(new.gateway, name) != value for name, value in kept.items()}
    changed = [key for key, is_changed in {**wanted, "http": new.http != old.http}.items() if is_changed]
    if changed:
        log.warning("restart_needed", keys=changed)
    return new.model_copy(update={"gateway": new.gateway.model_copy(update=kept), "http": old.http}), changed


LAST_WORDS = 5.0
"""How long replies that are fixed may take to reach their chats; what does not is in the outbox."""


def _now() -> datetime:
    return datetime.now(UTC)


@asynccontextmanager
async def opened(
    settings: Settings, *, listen: bool = True, now: Callable[[], datetime] = _now
) -> AsyncIterator["Daemon"]:
    """Hold the data directory and the ports, with every store recovered; the daemon inside is ready to `run`."""
    directory = settings.gateway.data_dir
    prepare_data_dir(directory)
    async with AsyncExitStack() as closing:
        closing.enter_context(DataDirLock(directory))
        require_complete_restore(directory)
        spool = await closing.enter_async_context(await Spool.open(directory))
        store = FileStore(directory / "files", settings.files.max_stored_bytes)
        await store.open()
        sessions = await SessionManager.open(
            directory / "sessions", settings.session, now, journal=spool, on_leaving=session_file_remover(store)
        )
        closing.push_async_callback(sessions.close)
        await sessions.recover()
        await drop_orphaned_files(store, sessions)
        daemon = Daemon(settings, sessions, spool, store, now)
        closing.push_async_callback(daemon.close)
        await closing.enter_async_context(_served(daemon, settings, listen=listen))
        yield daemon


@asynccontextmanager
async def _served(daemon: "Daemon", settings: Settings, *, listen: bool) -> AsyncIterator[None]:
    """Answer over HTTP for `daemon`, and tell it where."""
    directory = settings.gateway.data_dir
    token = await asyncio.to_thread(load_or_make_token, directory, settings.http.token)
    also_hide(token)
    auth = Auth(token)
    routes = [*core_routes(auth=auth, health=daemon.health, url=lambda: daemon.url), *daemon.routes()]
    control = directory / "control.sock"
    async with HttpServer(settings.http, auth=auth, routes=routes, control_path=control, listen=listen) as server:
        daemon.url = server.url
        daemon.page = f"{server.url}/#code={auth.mint_code()}"
        yield


class Daemon:
    """One gateway on one data directory. `run` returns after `stop`, with every word delivered or written down."""

    def __init__(
        self,
        settings: Settings,
        sessions: SessionManager,
        spool: Spool,
        store: FileStore,
        now: Callable[[], datetime],
    ) -> None:
        self.url = ""
        self.page = ""
        """A link that lets one browser in, once."""
        self.operator = Operator()
        self.backup = Backup(settings.gateway.data_dir, spool=spool, sessions=sessions, now=now)
        self._stopping = stopping = ShutdownRequest()
        self._live = Live(settings)
        self._sessions = sessions
        self._spool = spool
        self._ground = ground = Ground(
            live=self._live, spool=spool, sessions=sessions, store=store, metrics=Metrics(), now=now
        )
        self._chats = chats = open_chats(ground)
        self._agents = agents = open_agents(ground)
        self._lanes = lanes = self._open_lanes(self._do, "lane")
        self._readings = readings = self._open_lanes(self._read, "reading")
        self._watch = open_watch(ground, chats, agents, lanes, is_stopping=stopping.is_requested)
        self._desk = open_desk(
            ground, chats, agents, lanes, readings, status=self.status.sentence, restart=stopping.request_restart
        )
        self._answering = open_answering(ground, chats, agents, self._desk)
        sessions.is_busy = lanes.is_busy
        self.channels.open(settings)

    def _open_lanes(self, do: Callable[[Job], Coroutine[None, None, None]], name: str) -> Lanes[Job]:
        limits = self._live.settings.gateway
        return Lanes(
            do,
            name=name,
            max_waiting=limits.max_queued_per_session,
            max_total=limits.max_queued,
            on_removed=lambda job: self._chats.signs.remove(job.turn),
        )

    async def _do(self, job: Job) -> None:
        following: Job | None = job
        while following is not None:
            with self._watch.running_jobs.track(following):
                following = await self._answering.work.run(following)

    async def _read(self, job: Job) -> None:
        await self._answering.work.run(job)

    @property
    def channels(self) -> ChannelRegistry:
        return self._chats.channels

    @property
    def roster(self) -> AgentRegistry:
        return self._agents.roster

    @property
    def status(self) -> Status:
        return self._watch.status

    @property
    def alarm(self) -> ReminderScheduler:
        return self._answering.alarm

    def routes(self) -> list[Route]:
        """All that is served over HTTP besides the server's own."""
        return [
            *self.operator.routes(),
            *self.status.routes(),
            *doctor_routes(lambda: self._live.settings, self.channels.by_identity),
            *metrics_routes(self.status, self._ground.metrics, is_open=self._live.settings.http.open_metrics),
            *spool_routes(self._spool, self._chats.delivery),
            *pairing_routes(self._desk.pairing),
            *session_routes(self._sessions),
            *backup_routes(self.backup),
            *self._chats.uploads.routes(),
            *self.channels.routes(),
        ]

    def health(self) -> Health:
        return self._watch.status.health()

    @property
    def shutdown_timeout(self) -> float:
        """Seconds that running turns get once the daemon was asked to end."""
        return self._live.settings.gateway.shutdown_timeout

    @property
    def wants_restart(self) -> bool:
        """Whether the end was asked for so that whoever runs the daemon starts it anew."""
        return self._stopping.wants_restart

    def stop(self) -> None:
        """Ask for an orderly end; asked twice, do not wait for the turns that are running."""
        self._stopping.request()

    async def run(self, ready: Callable[[], None]) -> None:
        """Answer messages until `stop`; `ready` is called once the channels have been started."""
        async with asyncio.TaskGroup() as tasks:
            self._open(tasks)
            sides = [
                tasks.create_task(self._watch.housekeeping.run(), name="flush"),
                tasks.create_task(self._end_when_broken(), name="spool:broken"),
                tasks.create_task(watch_lag(self._ground.metrics.lag.observe), name="loop:lag"),
            ]
            await self._take_up()
            self.channels.start(tasks, self._answering.intake.deliver)
            for _ in range(2):  # A channel that needs nobody is up after its supervisor's pass of the loop and its own.
                await asyncio.sleep(0)
            ready()
            sides.append(tasks.create_task(self.roster.warm_up(), name="providers:warming_up"))
            ringing = tasks.create_task(self.alarm.run(), name="reminders")
            await self._stopping.wait()
            ringing.cancel()
            await self._shut_down()
            for side in sides:
                side.cancel()

    def _open(self, tasks: asyncio.TaskGroup) -> None:
        """Let everything work that works in tasks of its own."""
        self._lanes.open(tasks)
        self._readings.open(tasks)
        self._chats.delivery.chats.open(tasks)
        self._chats.signs.lanes.open(tasks)
        self._chats.files.downloads.open(tasks)
        self._agents.compactions.open(tasks)
        self._agents.mcp.start(tasks, self._live.settings.mcp)

    async def _take_up(self) -> None:
        """Know what the last run has known, and go on with what it has left."""
        await self._agents.meter.load()
        self._live.book.read(await self._spool.facts(FACTS))
        self._chats.moves.read(await self._spool.facts(MOVES))
        taking_up = TakingUp(
            spool=self._spool,
            sessions=self._sessions,
            lanes=self._lanes,
            readings=self._readings,
            delivery=self._chats.delivery,
            approvals=self._chats.approvals,
            signs=self._chats.signs,
            max_age=timedelta(seconds=self._live.settings.gateway.max_backlog_age),
            now=self._ground.now(),
        )
        await taking_up.run()

    async def close(self) -> None:
        """Close what holds connections of its own, after `run`."""
        await self.roster.aclose()

    async def reload(self, settings: Settings) -> list[str]:
        """Apply new settings, and return the keys that need a restart. Raises, with nothing changed, on a mistake."""
        settings, restart_needed = keep_fixed_settings(self._live.settings, settings)
        roster = await asyncio.to_thread(AgentRegistry, settings, self._agents.mcp)
        await roster.warm_up()
        restart_needed += await self.channels.reload(settings)
        old, self._agents.roster = self.roster, roster
        self._live.settings = settings
        self._ground.store.budget = settings.files.max_stored_bytes
        self._sessions.settings = settings.session
        for lanes in (self._lanes, self._readings):
            lanes.max_waiting = settings.gateway.max_queued_per_session
            lanes.max_total = settings.gateway.max_queued
        self._chats.delivery.channels_changed()
        self.alarm.recompute()
        await self._agents.mcp.follow(settings.mcp)
        await old.aclose()
        return restart_needed

    async def _end_when_broken(self) -> None:
        """Nothing can be accepted any more: the service manager shall start us anew, to look at the disk afresh."""
        await self._spool.broken.wait()
        raise SpoolBroken(self._spool.trouble or "The spool cannot be written.")

    async def _shut_down(self) -> None:
        lanes, chats = self._lanes, self._chats.delivery.chats
        log.info("shutdown_started", running=lanes.running, waiting=lanes.waiting)
        self._answering.intake.close()
        await self._stopping.wait_for(self._drained(), self.shutdown_timeout)
        self._chats.signs.lanes.stop_all("")  # Those of messages that wait for the next start stand until then.
        suspended = self._answering.turns.suspend()
        self._agents.compactions.stop()
        lanes.stop_all("")
        self._readings.stop_all("")
        await self._stopping.wait_for(self._drained(), LAST_WORDS)
        self._chats.files.downloads.close()
        await self._stopping.wait_for(chats.drained(), LAST_WORDS)
        lanes.abort()
        self._readings.abort()
        chats.stop_all("")
        suspended += self._answering.errands.suspended
        with suppress(SpoolFull, WrongState):  # Then this start counts as an attempt, of which there are some.
            await self._spool.commit(*(ResetAttempts(turn=turn) for turn in suspended))
        await self._watch.flusher.flush()
        await self.channels.stop()
        await self._agents.mcp.stop()
        log.info("shutdown_finished", suspended=len(suspended))

    async def _drained(self) -> None:
        """Return once nothing is being answered."""
        await self._lanes.drained()
        await self._readings.drained()
