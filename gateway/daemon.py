"""The composition root: builds, wires and runs the gateway, and shuts it down in an order you can recite."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime

import structlog

from config import Settings
from gateway.browsing import SessionBrowser
from gateway.channels import Channels
from gateway.commands import COMMANDS, Desk
from gateway.contract import Outbound, Route
from gateway.delivery import Delivery
from gateway.duplicates import Seen
from gateway.http.auth import Auth, load_or_make_token
from gateway.http.routes import Health, core_routes
from gateway.http.server import HttpServer
from gateway.intake import Intake
from gateway.lanes import Job, Lanes
from gateway.live import Live
from gateway.lock import DataDirLock, prepare_data_dir
from gateway.roster import Roster
from gateway.session_routes import session_routes
from gateway.sessions import SessionManager
from gateway.status import Status
from gateway.turns import SHUTTING_DOWN, Turns

__all__ = ["Daemon", "opened"]

log = structlog.get_logger()

LAST_WORDS = 5.0
"""How long turns that were cut short may take to write down and tell how they ended."""


def _now() -> datetime:
    return datetime.now(UTC)


@asynccontextmanager
async def opened(settings: Settings, *, listen: bool = True) -> AsyncIterator["Daemon"]:
    """Hold the data directory and the ports, with every store recovered; the daemon inside is ready to `run`."""
    directory = settings.gateway.data_dir
    prepare_data_dir(directory)
    async with AsyncExitStack() as closing:
        closing.enter_context(DataDirLock(directory))
        sessions = await SessionManager.open(directory / "sessions", settings.session, _now)
        closing.push_async_callback(sessions.close)
        await sessions.recover()
        daemon = Daemon(settings, sessions)
        auth = Auth(await asyncio.to_thread(load_or_make_token, directory, settings.http.token))
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

    def __init__(self, settings: Settings, sessions: SessionManager) -> None:
        self.url = ""
        self.page = ""
        """A link that lets one browser in, once."""
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()
        self._live = Live(settings)
        self._sessions = sessions
        self.roster = Roster(settings)
        self.channels = Channels(SessionBrowser(self._live, sessions))
        self._delivery = Delivery(self.channels.by_identity)
        turns = Turns(
            live=self._live,
            roster=lambda: self.roster,
            sessions=sessions,
            delivery=self._delivery,
            memory=settings.gateway.data_dir / "memory",
            now=_now,
        )
        self._lanes = Lanes(turns.run, max_waiting=settings.gateway.max_queued_per_session)
        self.status = Status(health=self.health, lanes=self._lanes, now=_now)
        self._intake = Intake(
            live=self._live,
            sessions=sessions,
            lanes=self._lanes,
            delivery=self._delivery,
            desk=Desk(sessions=sessions, lanes=self._lanes, commands=COMMANDS, status=self.status.sentence, now=_now),
            now=_now,
            seen=Seen(asyncio.get_running_loop().time),
        )
        self.channels.open(settings)

    def routes(self) -> list[Route]:
        """All that is served over HTTP besides the server's own."""
        return [*self.status.routes(), *session_routes(self._sessions), *self.channels.routes()]

    def stop(self) -> None:
        """Ask for an orderly end; asked twice, do not wait for the turns that are running."""
        if self._stopping.is_set():
            self._hurrying.set()
        self._stopping.set()

    async def run(self, ready: Callable[[], None]) -> None:
        """Answer messages until `stop`; `ready` is called once the channels have been started."""
        async with asyncio.TaskGroup() as tasks:
            self._lanes.open(tasks)
            flushing = tasks.create_task(self._flush_for_ever(), name="flush")
            self.channels.start(tasks, self._intake.deliver)
            await asyncio.sleep(0)  # A channel that needs nobody is up after one pass of the loop.
            ready()
            await self._stopping.wait()
            await self._shut_down()
            flushing.cancel()

    def reload(self, settings: Settings) -> None:
        """Put new settings in force; raises with nothing changed when they cannot work."""
        roster = Roster(settings)
        self.channels.open(settings)
        _warn_of_restart(self._live.settings, settings)
        self.roster = roster
        self._live.settings = settings

    def health(self) -> Health:
        trouble = self._sessions.trouble
        channels = self.channels.health()
        return Health(
            ready=not trouble and not self._stopping.is_set() and all(channel.state == "up" for channel in channels),
            channels=channels,
            troubles=(trouble,) if trouble else (),
        )

    async def _flush_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._live.settings.gateway.flush_interval)
            await self._sessions.flush()

    async def _shut_down(self) -> None:
        log.info("shutdown_started", running=self._lanes.running, waiting=self._lanes.waiting)
        self._intake.close()
        await self._drain()
        for job in self._lanes.stop_all(SHUTTING_DOWN):
            await self._apologise(job)
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                await self._lanes.drained()
        self._lanes.abandon()
        await self._sessions.flush()
        self.channels.stop()
        log.info("shutdown_finished")

    async def _drain(self) -> None:
        """Let the turns finish, until the deadline or a second signal."""
        drained = asyncio.ensure_future(self._lanes.drained())
        hurried = asyncio.ensure_future(self._hurrying.wait())
        timeout = self._live.settings.gateway.shutdown_timeout
        _, unfinished = await asyncio.wait({drained, hurried}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for waiting in unfinished:
            waiting.cancel()

    async def _apologise(self, job: Job) -> None:
        notice = Outbound(address=job.inbound.address, text=SHUTTING_DOWN, reply_to=job.inbound.message_id)
        await self._delivery.say(notice, key=job.turn)


def _warn_of_restart(old: Settings, new: Settings) -> None:
    """Say which changed settings a running daemon cannot take over."""
    fixed = {
        "gateway.data_dir": (old.gateway.data_dir, new.gateway.data_dir),
        "gateway.max_parallel_turns": (old.gateway.max_parallel_turns, new.gateway.max_parallel_turns),
        "http": (old.http, new.http),
    }
    changed = [key for key, (before, after) in fixed.items() if before != after]
    if changed:
        log.warning("restart_needed", keys=changed)
