import asyncio
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from gateway.sessions.storage.threads import Worker


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker("test")
    yield worker
    worker.stop()


async def test_work_is_done_in_order_and_told_to_each(worker: Worker) -> None:
    done: list[int] = []

    def work(number: int) -> int:
        done.append(number)
        return number * 2

    assert await asyncio.gather(*(worker.submit(partial(work, number)) for number in range(200))) == [
        number * 2 for number in range(200)
    ]
    assert done == list(range(200))


async def test_an_error_is_told_to_the_one_who_asked_and_to_no_other(worker: Worker) -> None:
    good, bad, after = worker.submit(lambda: 1), worker.submit(partial(int, "x")), worker.submit(lambda: 3)
    with pytest.raises(ValueError, match="invalid literal"):
        await bad
    assert (await good, await after) == (1, 3)


async def test_work_is_done_though_nobody_waits_for_it_any_more(worker: Worker) -> None:
    go_on, done = threading.Event(), threading.Event()
    first = worker.submit(go_on.wait)
    second = worker.submit(done.set)
    second.cancel()
    go_on.set()
    await first
    assert await asyncio.to_thread(done.wait, 10)


async def test_other_threads_can_ask_too(worker: Worker) -> None:
    assert await asyncio.to_thread(worker.call, threading.get_ident) == await worker.submit(threading.get_ident)
    with pytest.raises(ValueError, match="invalid literal"):
        await asyncio.to_thread(worker.call, partial(int, "x"))


async def test_what_was_asked_for_is_done_before_the_end() -> None:
    worker = Worker("test")
    waiting = [worker.submit(partial(int, number)) for number in range(50)]
    await asyncio.to_thread(worker.stop)
    assert await asyncio.gather(*waiting) == list(range(50))
    with pytest.raises(RuntimeError, match="closed"):
        worker.submit(lambda: 1)
    with pytest.raises(RuntimeError, match="closed"):
        worker.call(lambda: 1)


async def test_of_what_is_entrusted_only_trouble_is_told(worker: Worker) -> None:
    done: list[int] = []
    told: asyncio.Queue[Exception] = asyncio.Queue()
    worker.entrust(lambda: done.append(1), told.put_nowait)
    worker.entrust(partial(int, "x"), told.put_nowait)
    worker.entrust(lambda: done.append(2), told.put_nowait)
    async with asyncio.timeout(60):
        assert isinstance(await told.get(), ValueError)
        await worker.submit(lambda: done.append(3))
    assert done == [1, 2, 3]
    assert told.empty()
