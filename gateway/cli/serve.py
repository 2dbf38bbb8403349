"""Runs the daemon for `gatehouse run`: logging, signals, reloads, and messages to systemd."""

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

import structlog

from config import ConfigError, Loaded, LogLevel, ReloadPlan, destination
from gateway.aio import ShutdownRequest, ShutdownRequested
from gateway.build import open_daemon
from gateway.cli.common import EXIT_OK, common_cause, load_settings, print_error
from gateway.cli.environment import trim_environment
from gateway.conversation import Json
from gateway.daemon import Daemon
from gateway.descriptors import raise_descriptor_limit
from gateway.errors import CannotStart, MustStop, Refused
from gateway.install.sd_notify import notify, reloading, report_status, stopping, watchdog_interval
from gateway.observability import housekeeping
from gateway.observability.log_file import LogFile
from gateway.observability.logging import configure, secrets_in
from gateway.observability.recent_log import RecentLog

log = structlog.get_logger()

STDERR = 2
FEW_DESCRIPTORS = 256
"""With a lower limit, only a few browsers and programs can be connected at the same time."""


def serve(config: Path | None) -> int:
    """Run the daemon until a signal or the chat command `/restart` ends it."""
    loaded = load_settings(config)
    environ = trim_environment(loaded.settings.gateway.keep_environment)
    housekeeping.tune_garbage_collector()
    try:
        wants_restart = asyncio.run(_serve(loaded, config, environ))
    except ShutdownRequested:  # While the start was waiting for the database.
        return EXIT_OK
    if wants_restart:
        # Replace this process by a new `gatehouse run` with the same process id. The kernel holds blocked signals back
        # until the new process has installed its handlers.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})
        os.execve(sys.executable, sys.orig_argv, environ)  # noqa: S606 - we want no shell, and the arguments are our own.
    return EXIT_OK


async def _serve(loaded: Loaded, config: Path | None, environ: Mapping[str, str]) -> bool:
    """Run the daemon, which was started with `environ`. Return True if it asked to be restarted."""
    shutdown = ShutdownRequest()
    signals = _Signals(shutdown)
    with closing(DaemonLog(loaded)) as logs:
        logs.apply(loaded)
        log.info("config_loaded", file=loaded.source)
        if (limit := raise_descriptor_limit()) < FEW_DESCRIPTORS:
            log.warning("descriptor_limit_low", limit=limit, fix="raise it with `ulimit -n` or LimitNOFILE=")
        controls = Controls(config, loaded.path, logs, environ)
        async with open_daemon(loaded.settings, shutdown=shutdown, controls=controls) as daemon:
            if signals.stops:
                return False

            def announce() -> None:
                housekeeping.tune_garbage_collector()
                _notify_systemd("READY=1")
                log.info("gateway_ready", url=daemon.server.url, pid=os.getpid())
                controls.started.set()
                if os.isatty(STDERR):
                    link = daemon.sign_in_link()
                    print_error(f"\n  Gatehouse is ready. Open this link to chat (it works once):\n\n    {link}\n")
                else:
                    # The link signs its reader in, so no file and no journal must store it.
                    option = f" --config {shlex.quote(str(config))}" if config else ""
                    print_error(f"Gatehouse is ready. For a link to the chat page, run: gatehouse link{option}")

            async def report_to_systemd() -> None:
                await controls.started.wait()
                interval = watchdog_interval(os.environ, os.getpid())
                await report_status(_notify_systemd, daemon.status.sentence, interval)

            async def tell_systemd_about_shutdown() -> None:
                await shutdown.wait()
                if not shutdown.wants_restart:
                    _notify_systemd(stopping(daemon.shutdown_timeout))

            try:
                async with asyncio.TaskGroup() as tasks:
                    side_tasks = [tasks.create_task(controls.reload_on_hangup(daemon, signals.hung_up), name="reload")]
                    if "NOTIFY_SOCKET" in os.environ:
                        side_tasks += [
                            tasks.create_task(report_to_systemd(), name="systemd:status"),
                            tasks.create_task(tell_systemd_about_shutdown(), name="systemd:stopping"),
                        ]
                    await daemon.run(ready=announce)
                    for task in side_tasks:
                        task.cancel()
            except Exception as failure:
                cause = common_cause(failure)
                if isinstance(cause, MustStop):  # Not a bug: a disk has failed, or other nodes may take over.
                    log.error("gateway_failed", reason=str(cause))  # noqa: TRY400 - the reason is enough.
                else:
                    log.exception("gateway_crashed")  # With the traceback, which the command's error message lacks.
                raise
            finally:
                # A stop signal that arrives after a restart request wins.
                wants_restart = shutdown.wants_restart and not signals.stops
                _notify_systemd(
                    reloading() if wants_restart else stopping(loaded.settings.gateway.shutdown_timeout),
                )
    return wants_restart


class DaemonLog:
    """The daemon's log output. Follows the settings, and changes of the level while the daemon runs."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self.recent = RecentLog()
        self._file: LogFile | None = None

    def apply(self, loaded: Loaded) -> None:
        """Log as these settings say. Raises `CannotStart`, and changes nothing, if the log file cannot be opened."""
        gateway, old = loaded.settings.gateway, self._file
        if gateway.log_file is None:
            self._file = None
        elif old is not None and old.path == gateway.log_file:
            old.max_bytes, old.keep = gateway.log_file_bytes, gateway.log_file_count
        else:
            file = LogFile(gateway.log_file, max_bytes=gateway.log_file_bytes, keep=gateway.log_file_count)
            try:
                file.open()
            except OSError as error:
                raise CannotStart(
                    f"Can't write the log file {gateway.log_file}: {error.strerror}. "
                    "Make its folder writable for this user, or change `gateway.log_file`."
                ) from error
            self._file = file
        self.loaded = loaded
        self.set_level(gateway.log_level)
        if old is not None and old is not self._file:
            old.close()
        for warning in loaded.warnings:
            log.warning("config_warning", warning=warning)

    def set_level(self, level: LogLevel) -> None:
        """Change the level until the settings are applied again."""
        settings = self.loaded.settings
        configure(level, settings.gateway.log_format, secrets_in(settings), sys.stdout, self._file, self.recent)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _Signals:
    """Handles SIGTERM, SIGINT and SIGHUP, also while the daemon is still starting."""

    def __init__(self, shutdown: ShutdownRequest) -> None:
        self.hung_up = asyncio.Event()
        self.stops = 0
        self._shutdown = shutdown
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop)
        loop.add_signal_handler(signal.SIGINT, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self.hung_up.set)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGHUP})

    def _stop(self) -> None:
        self.stops += 1
        self._shutdown.request()


class Controls:
    """Reloads the configuration, one reload at a time, once the daemon has started. A broken file changes nothing."""

    def __init__(
        self, config: Path | None, config_path: Path | None, logs: DaemonLog, environ: Mapping[str, str]
    ) -> None:
        self.started = asyncio.Event()
        self.config_path = config_path
        """The file that was found; `config` is what the command line named."""
        self.set_log_level = logs.set_level
        self.recent_log = logs.recent
        self.config_destination = destination(config, environ, Path.cwd(), Path.home())
        self.environ = environ
        self._config = config
        self._logs = logs
        self._lock = asyncio.Lock()

    def check_config(self) -> dict[str, Json]:
        # Rarely used, so the daemon's start does not wait for it.
        from gateway.doctor.configuration import check_config, report_as_json  # noqa: PLC0415

        load = partial(load_settings, self._config, self.environ, is_running=True)
        return report_as_json(check_config(load, is_running=True))

    async def reload_on_hangup(self, daemon: Daemon, hung_up: asyncio.Event) -> None:
        """Reload whenever the event is set. Signals that arrive during a reload cause one more."""
        while True:
            await hung_up.wait()
            hung_up.clear()
            try:
                await self.reload(daemon)
            except Refused:
                pass  # `reload` has logged the reason.
            except Exception:  # A bug in reloading must not stop a working daemon.
                log.exception("reload_crashed")

    async def reload(self, daemon: Daemon) -> ReloadPlan:
        """Load and apply the settings, and return what was applied. Raises `Refused` with the reasons."""
        await self.started.wait()
        async with self._lock:
            _notify_systemd(reloading())
            try:
                loaded = await asyncio.to_thread(load_settings, self._config, self.environ, is_running=True)
                # The log file first, since it may be impossible to open: a mistake changes nothing.
                before = self._logs.loaded
                self._logs.apply(loaded)
                try:
                    plan = await daemon.reload(loaded.settings)
                except BaseException:
                    self._logs.apply(before)
                    raise
            except (ConfigError, CannotStart) as error:
                log.error("reload_refused", reason=str(error))  # noqa: TRY400 - the message is enough.
                raise Refused(str(error)) from error
            finally:
                _notify_systemd("READY=1")
            keys = {"applied": list(plan.applied), "restart_needed": list(plan.restart_needed)}
            log.info("config_reloaded", file=loaded.source, **keys)
            return plan


def _notify_systemd(state: str) -> None:
    notify(os.environ.get("NOTIFY_SOCKET"), state)
