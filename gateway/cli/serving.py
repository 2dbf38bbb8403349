"""Runs the daemon until its operator has enough of it: signals, readiness, reloads."""

import asyncio
import os
import signal
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NoReturn

import structlog

from config import ConfigError, Loaded, Settings
from gateway import garbage
from gateway.cli.exits import EXIT_CONFIG, EXIT_OK, complain
from gateway.cli.logging_setup import Logs
from gateway.cli.settings import load_settings
from gateway.cli.streams import tell
from gateway.daemon import Daemon, opened
from gateway.errors import CannotStart, Refused
from gateway.service import goes_to_journal, keep_informed, notify, reloading, stopping, watchdog_pause

__all__ = ["serve"]

log = structlog.get_logger()


def serve(config: Path | None) -> int:
    try:
        wants_restart = asyncio.run(_serve(load_settings(config), config))
    except (ConfigError, CannotStart) as refusal:
        return complain(refusal, EXIT_CONFIG)
    if wants_restart:
        _start_anew()
    return EXIT_OK


def _start_anew() -> NoReturn:
    """Become a fresh `gatehouse run` with the same process id; signals wait until it can follow them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - no shell is the point; the arguments are our own.


async def _serve(loaded: Loaded, config: Path | None) -> bool:
    """Return whether the daemon shall be started anew."""
    signals = _Signals()
    with closing(Logs(loaded)) as logs:
        logs.follow(loaded)
        return await _serve_logged(loaded, config, signals, logs)


async def _serve_logged(loaded: Loaded, config: Path | None, signals: "_Signals", logs: Logs) -> bool:
    async with opened(loaded.settings) as daemon:
        daemon.operator.set_log_level = logs.set_level
        daemon.backup.config = loaded.path
        signals.lead_to(daemon)
        if signals.stops:
            return False
        try:
            await _run(daemon, _Reloading(daemon, config, logs), signals)
        except Exception:  # Logged with all that is known before the command ends with a sentence.
            log.exception("gateway_crashed")
            raise
        finally:
            # Somebody who has told us to stop meanwhile means it.
            wants_restart = daemon.wants_restart and not signals.stops
            _tell_service_manager(_farewell(loaded.settings, wants_restart=wants_restart))
    return wants_restart


async def _run(daemon: Daemon, reloads: "_Reloading", signals: "_Signals") -> None:
    daemon.operator.reload = reloads.reload
    async with asyncio.TaskGroup() as tasks:
        sides = [
            tasks.create_task(reloads.follow(signals.hung_up), name="reload"),
            tasks.create_task(_keep_informed(daemon, reloads), name="service_manager"),
        ]
        await daemon.run(ready=partial(_announce, daemon, reloads))
        for side in sides:
            side.cancel()


async def _keep_informed(daemon: Daemon, reloads: "_Reloading") -> None:
    await reloads.started.wait()
    pause = watchdog_pause(os.environ, os.getpid())
    await keep_informed(_tell_service_manager, daemon.status.sentence, pause)


class _Signals:
    """What the operator has asked for, whenever that was: what comes before there is a daemon is remembered."""

    def __init__(self) -> None:
        self.hung_up = asyncio.Event()
        self.stops = 0
        self._daemon: Daemon | None = None
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop)
        loop.add_signal_handler(signal.SIGINT, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self.hung_up.set)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGHUP})

    def lead_to(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def _stop(self) -> None:
        self.stops += 1
        if self._daemon is not None:
            _tell_service_manager(stopping(self._daemon.shutdown_timeout))
            self._daemon.stop()


class _Reloading:
    """Reads the configuration again, one time after the other, once the daemon has started.

    A file with a mistake changes nothing.
    """

    def __init__(self, daemon: Daemon, config: Path | None, logs: Logs) -> None:
        self.started = asyncio.Event()
        self._daemon = daemon
        self._config = config
        self._logs = logs
        self._turn = asyncio.Lock()

    async def follow(self, hung_up: asyncio.Event) -> None:
        """Reload whenever the event is set; however often that is meanwhile, one more time is enough."""
        while True:
            await hung_up.wait()
            hung_up.clear()
            try:
                await self.reload()
            except Refused:
                pass  # The log has it.
            except Exception:  # Not even a bug of ours on this way may end a daemon that works.
                log.exception("reload_crashed")

    async def reload(self) -> None:
        """Raise `Refused`, with the reasons, when the new settings cannot work."""
        await self.started.wait()
        async with self._turn:
            _tell_service_manager(reloading())
            try:
                loaded = await asyncio.to_thread(load_settings, self._config)
                await self._daemon.reload(loaded.settings)
                self._logs.follow(loaded)
            except (ConfigError, CannotStart) as refusal:
                log.error("reload_refused", reason=str(refusal))  # noqa: TRY400 - the sentence says it all
                raise Refused(str(refusal)) from refusal
            finally:
                _tell_service_manager("READY=1")
            log.info("config_reloaded")


def _announce(daemon: Daemon, reloads: _Reloading) -> None:
    garbage.settle()
    _tell_service_manager("READY=1")
    log.info("gateway_ready", url=daemon.url, pid=os.getpid())
    reloads.started.set()
    # A journal keeps what it is told, and a link that lets its reader in does not belong there.
    if not goes_to_journal(2, os.environ.get("JOURNAL_STREAM")):
        tell(f"\n  Gatehouse is ready. Open this link to chat (it works once):\n\n    {daemon.page}\n")


def _farewell(settings: Settings, *, wants_restart: bool) -> str:
    return reloading() if wants_restart else stopping(settings.gateway.shutdown_timeout)


def _tell_service_manager(state: str) -> None:
    notify(os.environ.get("NOTIFY_SOCKET"), state)
