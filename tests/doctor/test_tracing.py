from pathlib import Path

from gateway.doctor.finding import Level
from gateway.doctor.tracing import check_tracing
from tests.daemon.harness import settings
from tests.observability.collector import collecting


async def test_a_collector_that_takes_traces_is_fine(tmp_path: Path) -> None:
    async with collecting() as collector:
        found = await check_tracing(settings(tmp_path, tracing=collector.table()))
    assert found.level is Level.OK
    assert found.message == f"The collector takes traces at {collector.url}/v1/traces."
    assert not collector.spans


async def test_a_collector_that_wants_another_key_is_reported(tmp_path: Path) -> None:
    async with collecting(401) as collector:
        headers = {"Authorization": "Bearer hunter2-hunter2"}
        found = await check_tracing(settings(tmp_path, tracing=collector.table(headers=headers)))
    assert found.level is Level.ERROR
    assert "status 401" in found.message
    assert "tracing.headers" in found.fix
    assert "hunter2" not in str(found)


async def test_a_collector_that_is_away_is_reported(tmp_path: Path) -> None:
    async with collecting() as collector:
        table = collector.table()
    found = await check_tracing(settings(tmp_path, tracing=table))
    assert found.level is Level.ERROR
    assert "cannot be reached" in found.message
