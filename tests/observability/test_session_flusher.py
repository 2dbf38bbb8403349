import asyncio

from gateway.observability.housekeeping import SessionFlusher


class Sessions:
    """Sessions whose flush ends and fails on command."""

    def __init__(self) -> None:
        self.trouble: str | None = None
        self.may_end = asyncio.Event()

    async def flush(self) -> None:
        await self.may_end.wait()


async def test_a_stuck_flush_is_reported_as_busy() -> None:
    now, sessions, noted = [100.0], Sessions(), list[float]()
    flusher = SessionFlusher(sessions, noted.append, clock=lambda: now[0])
    assert flusher.busy_for() == 0.0
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        tasks.create_task(flusher.flush(), name="flush")
        await asyncio.sleep(0)
        now[0] += 61.0
        assert flusher.busy_for() == 61.0
        sessions.may_end.set()
    assert flusher.busy_for() == 0.0
    assert (flusher.took, noted, flusher.age()) == (61.0, [61.0], 0.0)


async def test_a_failed_flush_does_not_reset_the_age() -> None:
    now, sessions = [100.0], Sessions()
    sessions.may_end.set()
    flusher = SessionFlusher(sessions, lambda _took: None, clock=lambda: now[0])
    sessions.trouble = "The disk is full."
    now[0] += 30.0
    await flusher.flush()
    assert (flusher.age(), flusher.failures) == (30.0, 1)
    sessions.trouble = None
    await flusher.flush()
    assert (flusher.age(), flusher.failures) == (0.0, 1)
