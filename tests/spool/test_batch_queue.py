import asyncio

from gateway.spool.writer import _BatchQueue


async def test_what_is_put_in_during_one_round_comes_out_at_once_and_in_order() -> None:
    hatch: _BatchQueue[int] = _BatchQueue()
    for number in range(100):
        hatch.put(number)
    assert await asyncio.to_thread(hatch.take) == list(range(100))


async def test_what_can_wait_goes_with_what_cannot() -> None:
    hatch: _BatchQueue[str] = _BatchQueue()
    hatch.put("patient", max_delay=3_600)
    taking = asyncio.create_task(asyncio.to_thread(hatch.take))
    hatch.put("hasty")
    async with asyncio.timeout(60):
        assert await taking == ["patient", "hasty"]


async def test_what_can_wait_is_not_forgotten() -> None:
    hatch: _BatchQueue[str] = _BatchQueue()
    hatch.put("patient", max_delay=0.001)
    async with asyncio.timeout(60):
        assert await asyncio.to_thread(hatch.take) == ["patient"]


async def test_the_rest_is_handed_over_at_the_end() -> None:
    hatch: _BatchQueue[str] = _BatchQueue()
    hatch.put("patient", max_delay=3_600)
    hatch.close()
    assert hatch.take() == ["patient"]
    assert hatch.take() == [], "nothing comes any more"
