import asyncio
import time

from gateway.metrics import watch_lag

HELD_UP = 0.2


async def test_what_holds_the_loop_up_is_seen() -> None:
    seen: asyncio.Queue[float] = asyncio.Queue()
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(watch_lag(seen.put_nowait, every=0.01), name="lag")
        await seen.get()
        time.sleep(HELD_UP)  # noqa: ASYNC251 - that is the point
        while await seen.get() < HELD_UP / 2:
            pass
        watching.cancel()
