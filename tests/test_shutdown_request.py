import asyncio

from gateway.aio import ShutdownRequest


async def test_what_is_waited_for_may_finish_after_the_first_time_of_asking() -> None:
    stopping, finished = ShutdownRequest(), asyncio.Event()
    stopping.request()

    async def finish() -> None:
        finished.set()

    async with asyncio.timeout(10):
        await stopping.wait()
        await stopping.wait_for(finish(), 60)
    assert finished.is_set()
    assert not stopping.wants_restart


async def test_asking_again_ends_the_waiting() -> None:
    stopping = ShutdownRequest()
    stopping.request()
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(stopping.wait_for(asyncio.sleep(60), 60), name="waiting")
        await asyncio.sleep(0)
        assert not waiting.done()
        stopping.request()


async def test_the_deadline_ends_the_waiting() -> None:
    async with asyncio.timeout(10):
        await ShutdownRequest().wait_for(asyncio.sleep(60), 0)


async def test_a_restart_is_an_end_that_is_asked_for() -> None:
    stopping = ShutdownRequest()
    assert not stopping.is_requested()
    stopping.request_restart()
    assert stopping.is_requested()
    assert stopping.wants_restart
