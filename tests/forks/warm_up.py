"""Runs one daemon before the first fork, so that forked processes inherit everything that is built on first use."""

import asyncio
import logging
import tempfile
import threading
from pathlib import Path

import structlog

from config import GatewaySettings, HttpSettings, LogFormat, LogLevel, Settings
from gateway.build import open_daemon
from gateway.observability.logging import configure


def warm_up() -> None:
    configure(LogLevel.ERROR, LogFormat.JSON, (), None)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_run_daemon(Path(folder)))
    structlog.reset_defaults()
    logging.getLogger().handlers = []
    assert threading.active_count() == 1, "a process with threads cannot be forked"


async def _run_daemon(folder: Path) -> None:
    settings = Settings(gateway=GatewaySettings(data_dir=folder / "data"), http=HttpSettings(port=0))
    async with asyncio.timeout(60), open_daemon(settings) as daemon:
        await daemon.run(daemon.stop)
