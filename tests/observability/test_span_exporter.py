"""The exporter of spans, with a real collector on this machine that fails in every way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.metrics import Metrics
from gateway.observability import span_exporter
from gateway.observability.span_exporter import MAX_BATCH, MAX_WAITING, SpanExporter
from gateway.tracing import Span
from tests.daemon.harness import settings
from tests.observability.collector import Collector, collecting
from tests.polling import until

LONG = 3600.0


def span(name: str = "turn") -> Span:
    return Span(name=name, trace="0123456789abcdef" * 2, id=b"8 bytes.", parent=b"", started=1, ended=2)


@asynccontextmanager
async def exporting(
    folder: Path, collector: Collector, *, delay: float = LONG
) -> AsyncIterator[tuple[SpanExporter, Metrics]]:
    metrics = Metrics()
    to = span_exporter.Collector.of(settings(folder, tracing=collector.table()))
    exporter = SpanExporter(to, metrics, delay=delay)
    task = asyncio.create_task(exporter.run(), name="traces")
    async with asyncio.timeout(60):
        yield exporter, metrics
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_spans_are_sent_in_batches(tmp_path: Path) -> None:
    async with collecting() as collector, exporting(tmp_path, collector) as (exporter, metrics):
        for _ in range(MAX_BATCH + 1):
            exporter.add(span())
        await collector.has_request.wait()
        await exporter.flush()
    assert metrics.spans["exported",] == len(collector.spans) == MAX_BATCH + 1
    assert len(collector.bodies) == 2


async def test_a_span_does_not_wait_for_others_for_long(tmp_path: Path) -> None:
    async with collecting() as collector, exporting(tmp_path, collector, delay=0.0) as (exporter, _):
        exporter.add(span())
        await collector.has_request.wait()


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_batch_is_sent_again_to_a_collector_that_is_busy(tmp_path: Path, status: int) -> None:
    async with collecting(status) as collector, exporting(tmp_path, collector, delay=0.0) as (exporter, metrics):
        with capture_logs() as logs:
            exporter.add(span())
            await until(lambda: metrics.spans["exported",])
    assert [each["event"] for each in logs] == ["traces_not_exported", "traces_exported_again"]
    assert collector.bodies[0] == collector.bodies[1]


@pytest.mark.parametrize("status", [301, 400, 401, 404, 500])
async def test_a_batch_that_the_collector_refuses_is_dropped(tmp_path: Path, status: int) -> None:
    async with collecting(status) as collector, exporting(tmp_path, collector) as (exporter, metrics):
        exporter.add(span())
        with capture_logs() as logs:
            await exporter.flush()
    assert metrics.spans == {("dropped",): 1, ("exported",): 0, ("rejected",): 0}
    assert logs[0]["reason"] == f"The collector has answered with status {status}."


async def test_spans_that_the_collector_rejects_are_counted(tmp_path: Path) -> None:
    async with collecting(rejects=1) as collector, exporting(tmp_path, collector) as (exporter, metrics):
        exporter.add(span())
        exporter.add(span())
        await exporter.flush()
    assert metrics.spans == {("dropped",): 0, ("exported",): 1, ("rejected",): 1}


async def test_a_shutdown_does_not_wait_for_a_collector_that_is_away(tmp_path: Path) -> None:
    async with collecting() as collector:
        pass
    async with exporting(tmp_path, collector, delay=0.0) as (exporter, metrics):
        for _ in range(2 * MAX_BATCH):
            exporter.add(span())
        await exporter.flush()
    assert metrics.spans["dropped",] == 2 * MAX_BATCH


async def test_the_oldest_spans_are_dropped_while_the_collector_is_away(tmp_path: Path) -> None:
    async with collecting() as collector, exporting(tmp_path, collector) as (exporter, metrics):
        for number in range(MAX_WAITING + 3):  # The task that sends them has not begun.
            exporter.add(span(str(number)))
        await exporter.flush()
    assert metrics.spans == {("dropped",): 3, ("exported",): MAX_WAITING, ("rejected",): 0}
    assert [collector.spans[0].name, collector.spans[-1].name] == ["3", str(MAX_WAITING + 2)]


async def test_a_span_that_cannot_be_encoded_raises_nothing(tmp_path: Path) -> None:
    async with collecting() as collector, exporting(tmp_path, collector) as (exporter, _):
        with capture_logs() as logs:
            exporter.add(Span(name="turn", trace="no id", id=b"", parent=b"", started=-1, ended=0))
        await exporter.flush()
    assert [each["event"] for each in logs] == ["span_invalid"]
    assert not collector.bodies


@pytest.mark.parametrize("ending", ["", "/", "/v1/traces", "/v1/traces/"])
async def test_the_endpoint_may_have_the_full_path(tmp_path: Path, ending: str) -> None:
    async with collecting() as collector:
        collector.url += ending
        async with exporting(tmp_path, collector) as (exporter, metrics):
            exporter.add(span())
            await exporter.flush()
    assert metrics.spans["exported",] == 1
