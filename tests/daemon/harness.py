"""Set-up shared by tests that run the whole gateway."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from channels.loopback import LoopbackChannel
from config import GatewaySettings, HttpSettings, Settings
from gateway.daemon import Daemon, opened

DAEMON_TIMEOUT = 90.0  # For a whole test. Generous, because the machine may be busy.


def settings(folder: Path, **tables: object) -> Settings:
    return Settings.model_validate(
        {
            "gateway": GatewaySettings(data_dir=folder / "data", flush_interval=3600, timezone="UTC"),
            "http": HttpSettings(port=0),
            "channels": {"web": {"enabled": False}, "terminal": {"enabled": False}, "loopback": {}},
            **tables,
        }
    )


@asynccontextmanager
async def gateway(
    configured: Settings,
    before: Callable[[Daemon], None] = lambda _daemon: None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> AsyncIterator[tuple[Daemon, LoopbackChannel]]:
    """Run a daemon and yield it with its loopback channel. `before` may change the daemon before it starts work."""
    async with (
        asyncio.timeout(DAEMON_TIMEOUT),
        opened(configured, listen=False, now=now) as daemon,
        asyncio.TaskGroup() as tasks,
    ):
        before(daemon)
        ready = asyncio.Event()
        tasks.create_task(daemon.run(ready.set), name="daemon")
        await ready.wait()
        loopback = daemon.channels.by_identity["loopback", "default"]
        assert isinstance(loopback, LoopbackChannel)
        yield daemon, loopback
        daemon.stop()
