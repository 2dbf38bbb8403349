"""The real daemon as a process of its own, with a fresh data directory and no key."""

import asyncio
import re
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

COMMAND = Path(sys.executable).with_name("gatehouse")
PATIENCE = 90.0


class Daemon:
    def __init__(self, home: Path) -> None:
        self._config = home / "gatehouse.toml"
        self._port = free_port()
        self._process: Process | None = None
        self.log: list[str] = []
        self._config.write_text(
            f'[gateway]\ndata_dir = "{home / "data"}"\n[http]\nport = {self._port}\n', encoding="utf-8"
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    async def start(self) -> str:
        """Return the link that it prints once it is ready."""
        self._process = await asyncio.create_subprocess_exec(
            COMMAND, "run", "--config", self._config, stdout=asyncio.subprocess.DEVNULL, stderr=PIPE
        )
        async with asyncio.timeout(PATIENCE):
            return await self._read_link(self._process)

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        async with asyncio.timeout(PATIENCE):
            await self._process.communicate()
        self._process = None

    async def _read_link(self, process: Process) -> str:
        assert process.stderr is not None
        async for raw in process.stderr:
            self.log.append(raw.decode())
            if found := re.search(r"http://\S+#code=\S+", self.log[-1]):
                return found.group()
        raise AssertionError("the daemon did not start:\n" + "".join(self.log))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
