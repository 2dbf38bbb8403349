"""The real daemon as a separate process, with an empty data directory and no API key."""

import asyncio
import signal
from pathlib import Path

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
