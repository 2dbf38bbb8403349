"""Readiness tells the truth: in /readyz, in status and in metrics alike."""

import asyncio
import threading
from pathlib import Path

from config import GatewaySettings
from gateway.admin.client import ControlClient
from gateway.build import open_daemon
from gateway.contract import Verdict
from tests.daemon.harness import DAEMON_TIMEOUT, gateway, settings
from tests.disks import fill, small_disk
from tests.observability.scrape import scrape
from tests.polling import until

SIZE = 24 * 1024 * 1024


async def test_not_ready_before_its_channels_are_up(tmp_path: Path) -> None:
    async with open_daemon(settings(tmp_path), listen=False) as daemon:
        seen = await scrape(tmp_path / "data")
        assert not daemon.status.health().ready
    assert seen.value("gatehouse_ready") == 0
    assert seen.value("gatehouse_channel_up", channel="loopback", account="default") == 0


async def test_a_channel_without_a_connection_is_up_when_the_daemon_is_ready(tmp_path: Path) -> None:
    ready: asyncio.Queue[bool] = asyncio.Queue()
    async with (
        asyncio.timeout(DAEMON_TIMEOUT),
        open_daemon(settings(tmp_path), listen=False) as daemon,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(daemon.run(lambda: ready.put_nowait(daemon.status.health().ready)), name="daemon")
        assert await ready.get()
        daemon.stop()


async def test_a_full_disk_is_reported_everywhere_and_so_is_its_end(tmp_path: Path) -> None:
    """The disk is checked without a message: a monitor cannot send one."""
    with small_disk(tmp_path / "disk", SIZE) as place:
        often = GatewaySettings(data_dir=place / "data", flush_interval=0.1)
        async with gateway(settings(place, gateway=often)) as (daemon, _), ControlClient(place / "data") as control:
            await until_metric(place, "gatehouse_flush_seconds_count")
            await asyncio.to_thread(fill, place / "ballast")
            await until_metric(place, "gatehouse_ready", is_set=False)
            told = await control.get("/readyz")
            status = await daemon.status.report()
            (place / "ballast").unlink()
            await until_metric(place, "gatehouse_ready")
            afterwards = await control.get("/readyz")
    assert told["status"] == status.state == "not ready"
    assert "The disk of the data directory is full" in str(told["troubles"])
    assert any("The disk of the data directory is full" in trouble for trouble in status.troubles)
    assert afterwards["status"] == "degraded"
    assert "free on the disk" in str(afterwards["warnings"])


async def until_metric(place: Path, metric: str, *, is_set: bool = True) -> None:
    async def is_so() -> bool:
        return bool((await scrape(place / "data")).value(metric)) is is_set

    await until(is_so)


async def test_an_unavailable_mcp_server_is_a_degraded_state(tmp_path: Path) -> None:
    servers = {"gone": {"command": ["/nowhere/to-be-found"]}}
    async with gateway(settings(tmp_path, mcp=servers)) as (daemon, _):
        health = daemon.status.health()
    assert (health.ready, health.state) == (True, "degraded")
    assert health.warnings == ("The MCP server gone is not available. See the log for the reason.",)


async def test_a_scrape_does_not_wait_for_a_stuck_disk(tmp_path: Path) -> None:
    answers = threading.Event()
    async with gateway(settings(tmp_path)) as (daemon, chat), asyncio.TaskGroup() as tasks:
        commit = daemon.spool._writer.run  # noqa: SLF001 - the only way to have a commit that does not end
        tasks.create_task(commit(lambda _connection: answers.wait(DAEMON_TIMEOUT)), name="stuck")
        try:
            stuck, status = await asyncio.gather(scrape(tmp_path / "data"), daemon.status.report())
        finally:
            answers.set()
        assert await chat.say("hello") is Verdict.ACCEPTED
        await chat.hear_message()
        afterwards = await scrape(tmp_path / "data")
    assert stuck.value("gatehouse_spool_busy_seconds") > 1.0
    assert "gatehouse_spool_bytes" not in stuck.names
    assert status.spool is None
    assert afterwards.value("gatehouse_spool_bytes") > 0
