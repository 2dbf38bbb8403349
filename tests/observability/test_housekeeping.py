"""Periodic work on a system that fails."""

import shutil
from pathlib import Path

from structlog.testing import capture_logs

from config import GatewaySettings
from gateway.daemon import Daemon
from tests.daemon.harness import gateway, settings
from tests.polling import until


async def rounds(daemon: Daemon) -> None:
    """Wait until all jobs have run again, twice."""
    before = daemon.metrics.flushes.count
    await until(lambda: daemon.metrics.flushes.count > before + 2)


async def test_a_job_that_fails_is_logged_once_and_tried_again(tmp_path: Path) -> None:
    often = GatewaySettings(data_dir=tmp_path / "data", flush_interval=0.1, timezone="UTC")
    uploads = tmp_path / "data/files/uploads"
    with capture_logs() as logs:
        async with gateway(settings(tmp_path, gateway=often)) as (daemon, _):
            uploads.mkdir(exist_ok=True)
            shutil.rmtree(uploads)
            uploads.write_text("not a folder")
            await rounds(daemon)
            uploads.unlink()
            await rounds(daemon)
    told = [(line["event"], line["job"]) for line in logs if line["event"].startswith("housekeeping")]
    assert told == [("housekeeping_failed", "uploads"), ("housekeeping_recovered", "uploads")]
