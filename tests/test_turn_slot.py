import asyncio

import pytest

from gateway.aio import TurnSlot
from tests.polling import until


async def test_a_turn_has_one_place_and_gives_it_back() -> None:
    places = asyncio.Semaphore(1)
    async with TurnSlot(10, places):
        assert places.locked()
    assert not places.locked()


async def test_a_pause_leaves_the_place_to_others_and_takes_one_again() -> None:
    places = asyncio.Semaphore(1)
    async with TurnSlot(10, places) as allowance:
        async with allowance.paused():
            assert not places.locked()
        assert places.locked()
    assert not places.locked()


async def test_the_time_of_a_pause_does_not_count() -> None:
    async with TurnSlot(0.2, asyncio.Semaphore(1)) as allowance, allowance.paused():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.4):
                await asyncio.Event().wait()


async def test_the_time_of_a_turn_comes_to_an_end() -> None:
    places = asyncio.Semaphore(1)
    with pytest.raises(TimeoutError):
        async with TurnSlot(0.01, places):
            await asyncio.Event().wait()
    assert not places.locked()


async def test_one_that_is_stopped_in_a_pause_waits_for_no_place() -> None:
    places = asyncio.Semaphore(1)
    paused = asyncio.Event()

    async def turn() -> None:
        async with TurnSlot(10, places) as allowance, allowance.paused():
            paused.set()
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group, asyncio.timeout(60):
        task = group.create_task(turn(), name="turn")
        await paused.wait()
        await places.acquire()
        task.cancel()
        await asyncio.wait({task})
    assert places.locked()


async def test_one_that_is_stopped_before_it_has_all_its_places_keeps_none() -> None:
    first, second = asyncio.Semaphore(1), asyncio.Semaphore(0)

    async def turn() -> None:
        async with TurnSlot(10, first, second):
            raise AssertionError("there is no place")

    async with asyncio.TaskGroup() as group, asyncio.timeout(60):
        task = group.create_task(turn(), name="turn")
        await until(first.locked)
        task.cancel()
        await asyncio.wait({task})
    assert not first.locked()
