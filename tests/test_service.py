import asyncio

import pytest

from gateway.service import keep_informed, watchdog_pause


@pytest.mark.parametrize(
    ("environ", "pause"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "60000000"}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "7"}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_a_sign_of_life_is_given_to_who_waits_for_one(environ: dict[str, str], pause: float | None) -> None:
    assert watchdog_pause(environ, 7) == pause


async def test_the_status_is_told_when_it_has_changed() -> None:
    told: asyncio.Queue[str] = asyncio.Queue()
    statuses = iter(["two\nlines", "two lines"])
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        informing = tasks.create_task(
            keep_informed(told.put_nowait, lambda: next(statuses, "news"), 0.001), name="informing"
        )
        heard = [await told.get() for _ in range(4)]
        informing.cancel()
    assert heard == ["WATCHDOG=1\nSTATUS=two lines", "WATCHDOG=1", "WATCHDOG=1\nSTATUS=news", "WATCHDOG=1"]
