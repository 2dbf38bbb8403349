import asyncio

import pytest

from gateway.install.sd_notify import report_status, watchdog_interval


@pytest.mark.parametrize(
    ("environ", "interval"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "60000000"}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "7"}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_watchdog_interval_is_half_of_the_timeout_for_this_process(
    environ: dict[str, str], interval: float | None
) -> None:
    assert watchdog_interval(environ, 7) == interval


async def test_status_is_sent_when_it_changes() -> None:
    told: asyncio.Queue[str] = asyncio.Queue()
    statuses = iter(["two\nlines", "two lines"])
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        informing = tasks.create_task(
            report_status(told.put_nowait, lambda: next(statuses, "news"), 0.001), name="informing"
        )
        heard = [await told.get() for _ in range(4)]
        informing.cancel()
    assert heard == ["WATCHDOG=1\nSTATUS=two lines", "WATCHDOG=1", "WATCHDOG=1\nSTATUS=news", "WATCHDOG=1"]
