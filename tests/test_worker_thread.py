import asyncio
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from gateway.aio import WorkerThread


@pytest.fixture
def worker() -> Iterator[WorkerThread]:
    worker = WorkerThread("test")
    yield worker
    worker.stop()


async def test_work_runs_in_order_and_each_caller_gets_its_result(worker: WorkerThread) -> None:
    done: list[int] = []

    def work(number: int) -> int:
        done.append(number)
        return number * 2

    results = await asyncio.gather(*(worker.submit(work, number) for number in range(200)))
    assert results == [number * 2 for number in range(200)]
    assert done == list(range(200))


async def test_an_error_reaches_only_the_caller_whose_work_failed(worker: WorkerThread) -> None:
    good, bad, after = worker.submit(lambda: 1), worker.submit(int, "x"), worker.submit(lambda: 3)
    with pytest.raises(ValueError, match="invalid literal"):
        await bad
    assert (await good, await after) == (1, 3)


async def test_work_runs_although_its_caller_was_cancelled(worker: WorkerThread) -> None:
    go_on, done = threading.Event(), threading.Event()
    first = worker.submit(go_on.wait)
    second = worker.submit(done.set)
    second.cancel()
    go_on.set()
    await first
    assert await asyncio.to_thread(done.wait, 10)


async def test_other_threads_can_call_too(worker: WorkerThread) -> None:
    assert await asyncio.to_thread(worker.call, threading.get_ident) == await worker.submit(threading.get_ident)
    with pytest.raises(ValueError, match="invalid literal"):
        await asyncio.to_thread(worker.call, partial(int, "x"))


async def test_posted_work_runs_at_once_when_a_caller_waits_for_the_thread() -> None:
    worker, done, errors = WorkerThread("test", post_delay=3600), list[int](), list[BaseException]()
    for number in range(3):
        worker.post(partial(done.append, number), errors.append)
    await worker.submit(done.append, 3)
    worker.post(partial(done.append, 4), errors.append)
    await asyncio.to_thread(worker.call, partial(done.append, 5))
    worker.post(partial(done.append, 6), errors.append)
    await asyncio.to_thread(worker.stop)
    assert done == [0, 1, 2, 3, 4, 5, 6]


async def test_an_error_report_that_fails_costs_no_other_caller_the_result(worker: WorkerThread) -> None:
    def fail(error: BaseException) -> None:
        raise RuntimeError("cannot report this") from error

    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reported.append(report["exception"]))
    worker.post(partial(int, "x"), fail)
    async with asyncio.timeout(60):
        assert await worker.submit(int, "7") == 7
    assert [str(each) for each in reported] == ["cannot report this"]


async def test_submitted_work_is_finished_before_the_thread_stops() -> None:
    worker = WorkerThread("test")
    waiting = [worker.submit(int, number) for number in range(50)]
    await asyncio.to_thread(worker.stop)
    assert await asyncio.gather(*waiting) == list(range(50))
    with pytest.raises(RuntimeError, match="stopped"):
        worker.submit(lambda: 1)
    with pytest.raises(RuntimeError, match="stopped"):
        worker.call(lambda: 1)


async def test_posted_work_reports_only_errors(worker: WorkerThread) -> None:
    done: list[int] = []
    errors: asyncio.Queue[BaseException] = asyncio.Queue()
    worker.post(lambda: done.append(1), errors.put_nowait)
    worker.post(partial(int, "x"), errors.put_nowait)
    worker.post(lambda: done.append(2), errors.put_nowait)
    async with asyncio.timeout(60):
        assert isinstance(await errors.get(), ValueError)
        await worker.submit(lambda: done.append(3))
    assert done == [1, 2, 3]
    assert errors.empty()
