import asyncio
import threading

from gateway.agent.providers.sdk_client import SharedClient


class Client:
    def __init__(self) -> None:
        self.made_in = threading.current_thread()
        self.is_closed = False

    async def close(self) -> None:
        self.is_closed = True


async def test_the_client_is_created_once_and_off_the_event_loop() -> None:
    connection = SharedClient(Client)
    async with connection.lease() as first, connection.lease() as second:
        assert first is second
        assert first.made_in is not threading.main_thread()
    assert not first.is_closed
    await connection.aclose()
    assert first.is_closed


async def test_concurrent_steps_share_the_client() -> None:
    made: list[Client] = []

    def connect() -> Client:
        made.append(Client())
        return made[-1]

    connection = SharedClient(connect)
    await asyncio.gather(*(connection.warm_up() for _ in range(20)))
    assert len(made) == 1


async def test_a_running_step_keeps_its_client() -> None:
    connection = SharedClient(Client)
    async with connection.lease() as client:
        await connection.aclose()
        assert not client.is_closed
    assert client.is_closed


async def test_a_turn_that_outlives_a_reload_opens_and_closes_a_client() -> None:
    connection = SharedClient(Client)
    await connection.aclose()
    await connection.warm_up()
    async with connection.lease() as client:
        pass
    assert client.is_closed
