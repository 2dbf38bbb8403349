import asyncio

from channels.telegram.breath import LONGEST, Breath


async def test_it_ends_with_the_first_answer() -> None:
    """Not by the clock, on a machine that may be slow: the answer comes in the same round of the event loop."""
    breath = Breath()
    taken = asyncio.create_task(breath.taken(), name="breath")
    await asyncio.sleep(0)
    breath.answered()
    await asyncio.sleep(0)
    assert taken.done()


async def test_it_ends_without_one_too() -> None:
    breath, loop = Breath(), asyncio.get_running_loop()
    breath.answered()  # What was said before does not count.
    began = loop.time()
    await breath.taken()
    assert loop.time() - began >= LONGEST / 2
