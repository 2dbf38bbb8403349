"""The real daemon, without an API key: as a separate process, or in this one with a model of the test."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from config import Settings
from gateway.build import open_daemon
from gateway.daemon import Daemon as RunningDaemon
from tests.daemon_process import DEFAULTS, TIMEOUT, DaemonProcess, write_config
from tests.ports import free_port


class Daemon:
    """Keeps its address across restarts."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._running: DaemonProcess | None = None
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/"
        write_config(home, DEFAULTS.replace("port = 0", f"port = {port}"))

    async def start(self) -> str:
        """Start and return a sign-in link."""
        self._running = DaemonProcess(self._home)
        await asyncio.to_thread(self._running.ready)
        return await asyncio.to_thread(self._running.link)

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._running is None:
            return
        with self._running as running:
            running.signal(how)
            await asyncio.to_thread(running.process.wait, TIMEOUT)
        self._running = None


@asynccontextmanager
async def running(configured: Settings, before: Callable[[RunningDaemon], None]) -> AsyncIterator[RunningDaemon]:
    """Run a daemon in this process, so that a test can choose its model with `before`."""
    async with open_daemon(configured) as daemon, asyncio.TaskGroup() as tasks:
        before(daemon)
        ready = asyncio.Event()
        tasks.create_task(daemon.run(ready.set), name="daemon")
        await ready.wait()
        yield daemon
        daemon.stop()
