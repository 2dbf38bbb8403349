"""The composition root: builds, wires and runs the gateway, and shuts it down in an order you can recite."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial

import structlog
from aiohttp import web

from config import LogLevel, Settings
from gateway.admission import Admission
from gateway.approvals import Approvals
from gateway.at_work import AtWork
from gateway.backup import Backup, insist_on_whole
from gateway.backup_routes import backup_routes
from gateway.browsing import SessionBrowser
from gateway.channels import Channels
from gateway.commands import COMMANDS, Desk
from gateway.compaction import Compactions
from gateway.condition import Condition
from gateway.contract import Access, Caller, Route
from gateway.delivery import Delivery
from gateway.doctor.routes import doctor_routes
from gateway.errands import Errands
from gateway.errors import Refused
from gateway.files.room import FileRoom, forget_orphans, remover
from gateway.files.store import FileStore
from gateway.files.uploads import FileRoutes
from gateway.flushes import Flushes
from gateway.free_space import FreeSpace
from gateway.guests import FACTS
from gateway.http.auth import Auth, load_or_make_token
from gateway.http.routes import Health, core_routes
from gateway.http.server import HttpServer
from gateway.intake import Intake
from gateway.jobs import Job
from gateway.lanes import Lanes
from gateway.live import Live
from gateway.lock import DataDirLock, prepare_data_dir
from gateway.logs import also_hide
from gateway.mcp.servers import McpServers
from gateway.meanwhile import Meanwhile
from gateway.meter import Meter
from gateway.metrics.lag import watch_lag
from gateway.metrics.scrape import Metrics
from gateway.metrics.tally import Tally
from gateway.moves import MOVES, Moves
from gateway.notebook import SpoolNotebook
from gateway.organs import Organs
from gateway.pairing import Pairing
from gateway.pairing_routes import pairing_routes
from gateway.preparing import Preparing
from gateway.reminders import Alarm, Reminders
from gateway.roster import Roster
from gateway.session_routes import session_routes
from gateway.sessions import SessionManager
from gateway.signs import Signs
from gateway.spool import Forgive, Spool, SpoolBroken, SpoolFull, WrongState
from gateway.spool_routes import spool_routes
from gateway.status import Status
from gateway.steadiness import Steadiness
from gateway.strangers import Strangers
from gateway.takeup import take_up
from gateway.turns import Turns
from gateway.vitals import Vitals
from gateway.work import Work

__all__ = ["Daemon", "opened"]

log = structlog.get_logger()

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
        insist_on_whole(directory)
        spool = await closing.enter_async_context(await Spool.open(directory))
        store = FileStore(directory / "files", settings.files.max_stored_bytes)
        await store.open()
        sessions = await SessionManager.open(
            directory / "sessions", settings.session, now, journal=spool, on_leaving=remover(store)
        )
        closing.push_async_callback(sessions.close)
        await sessions.recover()
        await forget_orphans(store, sessions)
        daemon = Daemon(settings, sessions, spool, store, now)
        closing.push_async_callback(daemon.close)
        token = await asyncio.to_thread(load_or_make_token, directory, settings.http.token)
        also_hide(token)
        auth = Auth(token)
        routes = [*core_routes(auth=auth, health=daemon.health, url=lambda: daemon.url), *daemon.routes()]
        server = HttpServer(
            settings.http, auth=auth, routes=routes, control_path=directory / "control.sock", listen=listen
        )
        await closing.enter_async_context(server)
        daemon.url = server.url
        daemon.page = f"{server.url}/#code={auth.mint_code()}"
        yield daemon


class Daemon:
    """One gateway on one data directory. `run` returns after `stop`, with every word delivered or written down."""

    on_reload: Callable[[], Awaitable[None]] | None = None
    """Reads the configuration again, or raises `Refused`; set by whoever knows where it is."""
    set_log_level: Callable[[LogLevel], None] | None = None
    """Changes what is logged; set by whoever has set up the log."""

    def __init__(
        self,
        settings: Settings,
        sessions: SessionManager,
        spool: Spool,
        store: FileStore,
        now: Callable[[], datetime],
    ) -> None:
        self._now = now
        self._steadiness = Steadiness()
        self.url = ""
        self.page = ""
        """A link that lets one browser in, once."""
        self.wants_restart = False
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()
        self._live = Live(settings)
        self._spool = spool
        self._sessions = sessions
        self._tally = Tally()
        self._at_work = AtWork()
        self._flushes = Flushes(sessions, self._tally.flushes.observe)
        self._space = FreeSpace(settings.gateway.data_dir)
        self._mcp = McpServers()
        self.roster = Roster(settings, self._mcp)
        self._moves = Moves(self._live, spool)
        self._approvals = Approvals(self._live, sessions)
        browser = SessionBrowser(self._live, sessions, self._approvals)
        self.channels = Channels(browser, self._moves.record, partial(SpoolNotebook, spool))
        self._signs = Signs(self.channels.by_identity)
        self._store = store
        self._files = FileRoom(self._live, store, self.channels.by_identity)
        self._file_routes = FileRoutes(store, lambda: self._live.settings.files.max_bytes, now)
        self._delivery = Delivery(
            self.channels.by_identity, spool, now=now, file_path=self._files.path, tally=self._tally
        )
        gateway = settings.gateway
        lanes: Lanes[Job] = Lanes(
            self._do,
            name="lane",
            max_waiting=gateway.max_queued_per_session,
            max_in_all=gateway.max_queued,
        )
        organs = Organs(
            channels=self.channels,
            sessions=sessions,
            spool=spool,
            flushes=self._flushes,
            space=self._space,
            lanes=lanes,
            at_work=self._at_work,
            replies=self._delivery.chats,
            mcp=self._mcp,
            roster=lambda: self.roster,
            tally=self._tally,
            is_stopping=self._stopping.is_set,
        )
        self._condition = Condition(organs)
        vitals = Vitals(organs, self._condition, now=now)
        self.status = Status(vitals, self._tally)
        self._metrics = Metrics(vitals, self._tally, is_open=settings.http.open_metrics)
        self._pairing = Pairing(self._live.book, spool, now=now, post=self._delivery.post)
        self._meter = Meter(self._live, spool, now=now, tally=self._tally)
        self._compactions = Compactions(sessions=sessions, meter=self._meter, spool=spool)
        reminders = Reminders(self._live, spool, now=now)
        self.alarm = Alarm(self._live, spool, self._delivery, reminders, now=now)
        desk = Desk(
            sessions=sessions,
            lanes=lanes,
            approvals=self._approvals,
            pairing=self._pairing,
            live=self._live,
            roster=lambda: self.roster,
            mcp=self._mcp,
            meter=self._meter,
            reminders=reminders,
            compactions=self._compactions,
            commands=COMMANDS,
            status=self.status.sentence,
            restart=self.restart,
            now=now,
        )
        self._lanes = lanes
        sessions.is_busy = lanes.is_busy
        preparing = Preparing(
            live=self._live,
            roster=lambda: self.roster,
            sessions=sessions,
            meter=self._meter,
            compactions=self._compactions,
            files=self._files,
            now=now,
        )
        self._turns = Turns(
            live=self._live,
            preparing=preparing,
            sessions=sessions,
            delivery=self._delivery,
            meanwhile=Meanwhile(self._live, lanes),
            approvals=self._approvals,
            reminders=reminders,
        )
        self._work = Work(
            self._turns,
            Errands(
                live=self._live, delivery=self._delivery, desk=desk, is_suspending=lambda: self._turns.is_suspending
            ),
        )
        self._intake = Intake(
            live=self._live,
            spool=spool,
            delivery=self._delivery,
            desk=desk,
            admission=Admission(self._live, Strangers(self._live, self._pairing, now=now), now=now),
            signs=self._signs,
            files=self._files.reception,
        )
        self.backup = Backup(settings.gateway.data_dir, spool=spool, sessions=sessions, now=now)
        self.channels.open(settings)

    def routes(self) -> list[Route]:
        """All that is served over HTTP besides the server's own."""
        return [
            Route(method="POST", path="/reload", access=Access.CONTROL, handle=self._handle_reload),
            Route(method="POST", path="/log-level", access=Access.CONTROL, handle=self._handle_log_level),
            *self.status.routes(),
            *doctor_routes(lambda: self._live.settings, self.channels.by_identity),
            *self._metrics.routes(),
            *spool_routes(self._spool, self._delivery),
            *pairing_routes(self._pairing),
            *session_routes(self._sessions),
            *backup_routes(self.backup),
            *self._file_routes.routes(),
            *self.channels.routes(),
        ]

    @property
    def shutdown_timeout(self) -> float:
        """Seconds that running turns get once the daemon was asked to end."""
        return self._live.settings.gateway.shutdown_timeout

    def stop(self) -> None:
        """Ask for an orderly end; asked twice, do not wait for the turns that are running."""
        if self._stopping.is_set():
            self._hurrying.set()
        self._stopping.set()

    def restart(self) -> None:
        """Ask for an orderly end after which whoever runs the daemon starts it anew."""
        self.wants_restart = True
        self.stop()

    async def run(self, ready: Callable[[], None]) -> None:
        """Answer messages until `stop`; `ready` is called once the channels have been started."""
        async with asyncio.TaskGroup() as tasks:
            self._lanes.open(tasks)
            self._delivery.chats.open(tasks)
            self._signs.lanes.open(tasks)
            self._compactions.open(tasks)
            await self._meter.read()
            self._files.reception.open(tasks)
            self._mcp.start(tasks, self._live.settings.mcp)
            sides = [
                tasks.create_task(self._flush_for_ever(), name="flush"),
                tasks.create_task(self._end_when_broken(), name="spool:broken"),
                tasks.create_task(watch_lag(self._tally.lag.observe), name="loop:lag"),
            ]
            self._live.book.read(await self._spool.facts(FACTS))
            self._moves.read(await self._spool.facts(MOVES))
            await take_up(
                self._spool,
                self._sessions,
                self._lanes,
                self._delivery,
                self._approvals,
                self._live.settings,
                self._now(),
            )
            self.channels.start(tasks, self._intake.deliver)
            await asyncio.sleep(0)  # A channel that needs nobody is up after one pass of the loop.
            ready()
            sides.append(tasks.create_task(self.roster.warm_up(), name="providers:warming_up"))
            ringing = tasks.create_task(self.alarm.run(), name="reminders")
            await self._stopping.wait()
            ringing.cancel()
            await self._shut_down()
            for side in sides:
                side.cancel()

    async def close(self) -> None:
        """Close what holds connections of its own, after `run`."""
        await self.roster.aclose()

    async def reload(self, settings: Settings) -> None:
        """Put new settings in force; raises with nothing changed when they cannot work."""
        settings = _with_what_is_fixed(self._live.settings, settings)
        roster = await asyncio.to_thread(Roster, settings, self._mcp)
        await roster.warm_up()
        await self.channels.reload(settings)
        old, self.roster = self.roster, roster
        self._live.settings = settings
        self._store.budget = settings.files.max_stored_bytes
        self._sessions.settings = settings.session
        self._lanes.max_waiting = settings.gateway.max_queued_per_session
        self._lanes.max_in_all = settings.gateway.max_queued
        self._delivery.channels_changed()
        self.alarm.look_anew()
        await self._mcp.follow(settings.mcp)
        await old.aclose()

    async def _handle_reload(self, _request: web.Request, _caller: Caller) -> web.StreamResponse:
        if self.on_reload is None:
            raise Refused("This gateway belongs to a chat; it reads its configuration when it starts.")
        await self.on_reload()
        return web.json_response({})

    async def _handle_log_level(self, request: web.Request, _caller: Caller) -> web.StreamResponse:
        level = (await request.json()).get("level")
        if self.set_log_level is None or level not in set(LogLevel):
            raise Refused(f"The log level has to be one of: {', '.join(LogLevel)}.")
        self.set_log_level(LogLevel(level))
        log.info("log_level_changed", to=level)
        return web.json_response({})

    def health(self) -> Health:
        return self._condition.health()

    async def _do(self, job: Job) -> None:
        self._at_work.begin(job)
        try:
            await self._work.run(job)
        finally:
            self._at_work.end(job)

    async def _flush_for_ever(self) -> None:
        while True:
            await self._space.look()
            await asyncio.sleep(self._sessions.next_flush(self._live.settings.gateway.flush_interval))
            await self._flushes.flush()
            with suppress(SpoolFull):  # There is more room some other time.
                is_steady = self._steadiness.look(self._now(), asyncio.get_running_loop().time())
                await self._sessions.sweep(expires=is_steady)
                await self._spool.tidy(self._now())
            await self._file_routes.tidy()

    async def _end_when_broken(self) -> None:
        """Nothing can be accepted any more: the service manager shall start us anew, to look at the disk afresh."""
        await self._spool.broken.wait()
        raise SpoolBroken(self._spool.trouble or "The spool cannot be written.")

    async def _shut_down(self) -> None:
        lanes, chats = self._lanes, self._delivery.chats
        log.info("shutdown_started", running=lanes.running, waiting=lanes.waiting)
        self._intake.close()
        self._signs.lanes.stop_all("")
        await self._until(lanes.drained(), self._live.settings.gateway.shutdown_timeout)
        suspended = self._turns.suspend()
        self._compactions.stop()
        lanes.stop_all("")
        await self._until(lanes.drained(), LAST_WORDS)
        self._files.reception.close()
        await self._until(chats.drained(), LAST_WORDS)
        lanes.abandon()
        chats.stop_all("")
        with suppress(SpoolFull, WrongState):  # Then this start counts as an attempt, of which there are some.
            await self._spool.commit(*(Forgive(turn=turn) for turn in suspended))
        await self._flushes.flush()
        await self.channels.stop()
        await self._mcp.stop()
        log.info("shutdown_finished", suspended=len(suspended))

    async def _until(self, done: Coroutine[None, None, None], seconds: float) -> None:
        """Wait for `done`, until the deadline or a second signal."""
        async with asyncio.TaskGroup() as tasks:
            waits = {
                tasks.create_task(done, name="shutdown:waiting"),
                tasks.create_task(_wait(self._hurrying), name="shutdown:hurrying"),
            }
            _, unfinished = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for each in unfinished:
                each.cancel()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


def _with_what_is_fixed(old: Settings, new: Settings) -> Settings:
    """Keep in force what a running daemon cannot change, and say so where the file now says otherwise."""
    kept = {"data_dir": old.gateway.data_dir, "max_parallel_turns": old.gateway.max_parallel_turns}
    if new.gateway.data_dir != old.gateway.data_dir and new.gateway.workspace_root.is_relative_to(new.gateway.data_dir):
        kept["workspace_root"] = old.gateway.workspace_root
    wanted = {f"gateway.{name}": getattr(new.gateway, name) != value for name, value in kept.items()}
    changed = [key for key, is_changed in {**wanted, "http": new.http != old.http}.items() if is_changed]
    if changed:
        log.warning("restart_needed", keys=changed)
    return new.model_copy(update={"gateway": new.gateway.model_copy(update=kept), "http": old.http})
