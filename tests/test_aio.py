import asyncio
import threading
from itertools import islice

import pytest

from gateway.aio import (
    KeyedLocks,
    ShutdownRequest,
    ShutdownRequested,
    TurnSlot,
    backoff_delays,
    finish_before_cancel,
    in_daemon_thread,
)
from tests.polling import until


async def test_a_turn_slot_holds_a_permit_and_returns_it() -> None:
    permits = asyncio.Semaphore(1)
    async with TurnSlot(10, permits):
        assert permits.locked()
    assert not permits.locked()


async def test_a_pause_returns_the_permit_and_acquires_one_again() -> None:
    permits = asyncio.Semaphore(1)
    async with TurnSlot(10, permits) as slot:
        async with slot.paused():
            assert not permits.locked()
        assert permits.locked()
    assert not permits.locked()


async def test_a_pause_does_not_count_towards_the_time_limit() -> None:
    async with TurnSlot(0.2, asyncio.Semaphore(1)) as slot, slot.paused():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.4):
                await asyncio.Event().wait()


async def test_a_turn_slot_times_out() -> None:
    permits = asyncio.Semaphore(1)
    with pytest.raises(TimeoutError):
        async with TurnSlot(0.01, permits):
            await asyncio.Event().wait()
    assert not permits.locked()


async def test_a_turn_cancelled_in_a_pause_does_not_wait_for_a_permit() -> None:
    permits = asyncio.Semaphore(1)
    paused = asyncio.Event()

    async def turn() -> None:
        async with TurnSlot(10, permits) as slot, slot.paused():
            paused.set()
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group, asyncio.timeout(60):
        task = group.create_task(turn(), name="turn")
        await paused.wait()
        await permits.acquire()
        task.cancel()
        await asyncio.wait({task})
    assert permits.locked()


async def test_a_turn_cancelled_while_it_waits_for_permits_keeps_none() -> None:
    first, second = asyncio.Semaphore(1), asyncio.Semaphore(0)

    async def turn() -> None:
        async with TurnSlot(10, first, second):
            raise AssertionError("there is no permit")

    async with asyncio.TaskGroup() as group, asyncio.timeout(60):
        task = group.create_task(turn(), name="turn")
        await until(first.locked)
        task.cancel()
        await asyncio.wait({task})
    assert not first.locked()


def test_retry_delays_double_up_to_the_cap() -> None:
    class NoJitter:
        def uniform(self, _low: float, high: float) -> float:
            return high

    assert list(islice(backoff_delays(first=1, cap=5, jitter=NoJitter()), 5)) == [1, 2, 4, 5, 5]


def test_jitter_shortens_a_delay_by_at_most_half() -> None:
    assert all(0.25 <= wait <= 0.5 for wait in (next(backoff_delays(first=0.5)) for _ in range(100)))


async def test_running_work_may_finish_after_the_first_request() -> None:
    shutdown, finished = ShutdownRequest(), asyncio.Event()
    shutdown.request()

    async def finish() -> None:
        finished.set()

    async with asyncio.timeout(10):
        await shutdown.wait()
        await shutdown.wait_for(finish(), 60)
    assert finished.is_set()
    assert not shutdown.wants_restart


async def test_a_second_request_ends_the_wait() -> None:
    shutdown = ShutdownRequest()
    shutdown.request()
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(shutdown.wait_for(asyncio.sleep(60), 60), name="waiting")
        await asyncio.sleep(0)
        assert not waiting.done()
        shutdown.request()


async def test_the_deadline_ends_the_wait() -> None:
    async with asyncio.timeout(10):
        await ShutdownRequest().wait_for(asyncio.sleep(60), 0)


async def test_a_restart_is_a_shutdown_request() -> None:
    shutdown = ShutdownRequest()
    assert not shutdown.is_requested()
    shutdown.request_restart()
    assert shutdown.is_requested()
    assert shutdown.wants_restart


class Job:
    """Work that waits until it may finish."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.started = asyncio.Event()
        self.may_finish = asyncio.Event()
        self.has_finished = False

    async def run(self) -> str:
        self.started.set()
        await self.may_finish.wait()
        if self.failure:
            raise self.failure
        self.has_finished = True
        return "done"


async def cancelled(job: Job, grace: float | None = None) -> asyncio.Task[str]:
    """Start the job and cancel it while it runs."""
    task = asyncio.create_task(finish_before_cancel(job.run(), grace=grace), name="work")
    await job.started.wait()
    task.cancel("enough")
    return task


async def test_finish_before_cancel_returns_the_result_or_raises_the_error() -> None:
    good, bad = Job(), Job(LookupError())
    good.may_finish.set()
    bad.may_finish.set()
    assert await finish_before_cancel(good.run()) == "done"
    with pytest.raises(LookupError):
        await finish_before_cancel(bad.run())


@pytest.mark.parametrize("failure", [None, ValueError()])
async def test_a_cancellation_is_raised_after_the_work_has_finished(failure: Exception | None) -> None:
    job = Job(failure)
    task = await cancelled(job)
    asyncio.get_running_loop().call_soon(job.may_finish.set)
    with pytest.raises(asyncio.CancelledError, match="enough"):
        await task
    assert job.has_finished is (failure is None)


async def test_the_grace_is_limited() -> None:
    job = Job()
    task = await cancelled(job, grace=0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not job.has_finished


async def test_a_second_cancellation_takes_effect_at_once() -> None:
    job = Job()
    task = await cancelled(job)
    asyncio.get_running_loop().call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not job.has_finished


async def test_a_keyed_lock_passes_on_in_order_and_leaves_nothing_behind() -> None:
    locks, order = KeyedLocks(), list[int]()

    async def work(number: int) -> None:
        await locks.acquire("a")
        order.append(number)
        await asyncio.sleep(0)
        locks.release("a")

    await locks.acquire("b")
    await asyncio.gather(*(work(number) for number in range(5)))
    assert order == [0, 1, 2, 3, 4]
    assert len(locks) == 1
    locks.release("b")
    assert len(locks) == 0


async def test_a_cancelled_waiter_does_not_keep_a_keyed_lock() -> None:
    locks = KeyedLocks()
    await locks.acquire("a")
    cancelled, passed_over, last = [asyncio.create_task(locks.acquire("a"), name=f"waiter:{n}") for n in range(3)]
    await asyncio.sleep(0)
    cancelled.cancel()
    locks.release("a")  # Passes the lock to `passed_over`, which is cancelled before it can run.
    passed_over.cancel()
    await last
    assert cancelled.cancelled()
    assert passed_over.cancelled()
    locks.release("a")
    assert len(locks) == 0


async def test_a_shutdown_request_cancels_the_work_that_it_interrupts() -> None:
    shutdown, is_cancelled = ShutdownRequest(), False

    async def work() -> None:
        nonlocal is_cancelled
        shutdown.request()
        try:
            await asyncio.Event().wait()
        finally:
            is_cancelled = True

    with pytest.raises(ShutdownRequested):
        await shutdown.interrupts(work())
    assert is_cancelled


async def test_work_that_nothing_interrupts_returns_its_result_or_raises_its_error() -> None:
    async def divide(number: int) -> int:
        return 6 // number

    assert await ShutdownRequest().interrupts(divide(2)) == 3
    with pytest.raises(ZeroDivisionError):
        await ShutdownRequest().interrupts(divide(0))


async def test_work_in_a_daemon_thread_returns_its_result_or_raises_its_error() -> None:
    assert await in_daemon_thread("test", lambda: threading.current_thread().daemon)
    with pytest.raises(ZeroDivisionError):
        await in_daemon_thread("test", lambda: 1 // 0)


async def test_a_cancelled_caller_leaves_the_daemon_thread_behind() -> None:
    has_started, may_end = threading.Event(), threading.Event()

    def work() -> None:
        has_started.set()
        may_end.wait(60)

    async with asyncio.TaskGroup() as group:
        caller = group.create_task(in_daemon_thread("left", work))
        await until(has_started.is_set)
        caller.cancel()
    assert "left" in [thread.name for thread in threading.enumerate()]
    may_end.set()
    await until(lambda: "left" not in [thread.name for thread in threading.enumerate()])
