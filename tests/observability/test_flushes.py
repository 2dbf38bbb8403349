import asyncio

from gateway.observability.housekeeping import Flushes


class Sessions:
    """Something to be flushed that takes as long, and fails, as it is told."""

    def __init__(self) -> None:
        self.trouble: str | None = None
        self.may_end = asyncio.Event()

    async def flush(self) -> None:
        await self.may_end.wait()


async def test_a_flush_that_does_not_end_shows() -> None:
    now, sessions, noted = [100.0], Sessions(), list[float]()
    flushes = Flushes(sessions, noted.append, clock=lambda: now[0])
    assert flushes.busy_for() == 0.0
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(flushes.flush(), name="flush")
        await asyncio.sleep(0)
        now[0] += 61.0
        assert flushes.busy_for() == 61.0
        sessions.may_end.set()
    assert flushes.busy_for() == 0.0
    assert (flushes.took, noted, flushes.age()) == (61.0, [61.0], 0.0)


async def test_one_that_failed_makes_nothing_younger() -> None:
    now, sessions = [100.0], Sessions()
    sessions.may_end.set()
    flushes = Flushes(sessions, lambda _took: None, clock=lambda: now[0])
    sessions.trouble = "The disk is full."
    now[0] += 30.0
    await flushes.flush()
    assert (flushes.age(), flushes.failures) == (30.0, 1)
    sessions.trouble = None
    await flushes.flush()
    assert (flushes.age(), flushes.failures) == (0.0, 1)
