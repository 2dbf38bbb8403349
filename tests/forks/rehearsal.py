"""One daemon that starts and ends before any is forked: what is made at its first use is there for all of them then."""

import asyncio
import logging
import tempfile
import threading
from pathlib import Path

import structlog

from config import GatewaySettings, HttpSettings, LogFormat, LogLevel, Settings
from gateway.build import open_daemon
from gateway.observability.logging import configure

__all__ = ["rehearse"]


def rehearse() -> None:
    configure(LogLevel.ERROR, LogFormat.JSON, (), None)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_live(Path(folder)))
    structlog.reset_defaults()
    logging.getLogger().handlers = []
    assert threading.active_count() == 1, "a process with threads cannot be forked"


async def _live(folder: Path) -> None:
    settings = Settings(gateway=GatewaySettings(data_dir=folder / "data"), http=HttpSettings(port=0))
    async with asyncio.timeout(60), open_daemon(settings) as daemon:
        await daemon.run(daemon.stop)
