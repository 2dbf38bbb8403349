"""Set-up shared by tests of the API for administration: a daemon with a configuration file and a log."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path

from aiohttp import ClientSession, ClientTimeout

from gateway.aio import ShutdownRequest
from gateway.build import open_daemon
from gateway.cli.common import load_settings
from gateway.cli.serve import Controls, DaemonLog
from gateway.daemon import Daemon
from tests.api.harness import Api
from tests.daemon.harness import DAEMON_TIMEOUT

CONFIG = """\
# The settings of a test.
[gateway]
data_dir = "{home}/data"
timezone = "UTC"

[http]
port = 0

[channels.web]
enabled = false

[channels.terminal]
enabled = false

[channels.loopback]
"""


@asynccontextmanager
async def administered(
    home: Path,
    config: str = CONFIG,
    *,
    before: Callable[[Daemon], None] = lambda _daemon: None,
    shutdown: ShutdownRequest | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> AsyncIterator[Api]:
    """Run a daemon as `gatehouse run` does, and yield a program with the owner's token."""
    path = home / "gatehouse.toml"
    path.write_text(config.replace("{home}", str(home)))
    path.chmod(0o600)
    environ = {"PATH": os.environ["PATH"], "HOME": str(home)}
    loaded = load_settings(path, environ)
    with closing(DaemonLog(loaded)) as logs:
        logs.apply(loaded)
        controls = Controls(path, path, logs, environ)
        async with (
            asyncio.timeout(DAEMON_TIMEOUT),
            open_daemon(loaded.settings, controls=controls, shutdown=shutdown, now=now) as daemon,
            ClientSession(timeout=ClientTimeout(total=DAEMON_TIMEOUT)) as http,
            asyncio.TaskGroup() as tasks,
        ):
            before(daemon)
            tasks.create_task(daemon.run(controls.started.set), name="daemon")
            await controls.started.wait()
            token = await asyncio.to_thread((loaded.settings.gateway.data_dir / "http.token").read_text)
            yield Api(daemon=daemon, http=http, token=token.strip())
            daemon.stop()
