import asyncio

import pytest

from gateway.aio import finish_before_cancel


class Job:
    """Work that waits in its middle until it is let go on."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.has_ended = False

    async def run(self) -> str:
        self.begun.set()
        await self.may_end.wait()
        if self.failure:
            raise self.failure
        self.has_ended = True
        return "done"


async def cancelled(job: Job, patience: float | None = None) -> asyncio.Task[str]:
    """Start the job wholly, and cancel it in its middle."""
    task = asyncio.create_task(finish_before_cancel(job.run(), grace=patience), name="whole")
    await job.begun.wait()
    task.cancel("enough")
    return task


async def test_what_it_does_and_what_goes_wrong_is_passed_on() -> None:
    good, bad = Job(), Job(LookupError())
    good.may_end.set()
    bad.may_end.set()
    assert await finish_before_cancel(good.run()) == "done"
    with pytest.raises(LookupError):
        await finish_before_cancel(bad.run())


@pytest.mark.parametrize("failure", [None, ValueError()])
async def test_a_cancellation_takes_effect_after_the_work(failure: Exception | None) -> None:
    job = Job(failure)
    task = await cancelled(job)
    asyncio.get_running_loop().call_soon(job.may_end.set)
    with pytest.raises(asyncio.CancelledError, match="enough"):
        await task
    assert job.has_ended is (failure is None)


async def test_patience_is_limited() -> None:
    job = Job()
    task = await cancelled(job, patience=0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not job.has_ended


async def test_a_second_cancellation_is_not_put_off() -> None:
    job = Job()
    task = await cancelled(job)
    asyncio.get_running_loop().call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not job.has_ended
