"""`/stop` when its answer cannot be stored, or when its delivery is cancelled."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from channels.loopback import LoopbackChannel
from gateway.daemon import Daemon
from gateway.errors import NotAccepted
from gateway.spool import Spool
from tests.daemon.harness import Slow, gateway, settings
from tests.disks import fill, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 4 * 1024 * 1024) as place:
        yield place


@asynccontextmanager
async def one_running_and_two_waiting(folder: Path) -> AsyncIterator[tuple[Slow, Daemon, LoopbackChannel]]:
    model = Slow()
    async with gateway(settings(folder)) as (daemon, chat):
        daemon.agents.replace("main", lambda agent: replace(agent, provider=model))
        await chat.say("first")
        await model.is_asked.wait()
        await chat.say("second")
        await chat.say("third")
        yield model, daemon, chat


async def until_refused(chat: LoopbackChannel, text: str, ballast: Path) -> None:
    """Say something on a disk that is kept full, until not even that can be stored."""
    with suppress(NotAccepted):
        while True:
            await asyncio.to_thread(fill, ballast)
            await chat.say(text)
            await chat.hear_message()


async def test_waiting_messages_are_answered_when_the_stop_cannot_be_stored(disk: Path) -> None:
    async with one_running_and_two_waiting(disk) as (model, _, chat):
        await until_refused(chat, "/whoami", disk / "ballast")
        with pytest.raises(NotAccepted):
            await chat.say("/stop")
        (disk / "ballast").unlink()
        model.may_answer.set()
        texts = [(await chat.hear_message()).text for _ in range(3)]
    assert texts == ["Done."] * 3, "a stop that is not stored changes nothing"


async def test_a_stop_is_answered_even_if_its_delivery_was_cancelled(tmp_path: Path) -> None:
    async with one_running_and_two_waiting(tmp_path) as (_, daemon, chat):
        stopping = asyncio.create_task(chat.say("/stop"), name="stopping")
        while "2 messages waiting" in daemon.status.sentence():  # noqa: ASYNC110 - a pause would let the stop finish.
            await asyncio.sleep(0)
        stopping.cancel()
        assert (await chat.hear_message()).text == "Stopped. 2 waiting messages dropped."
    async with await Spool.open(tmp_path / "data") as spool:
        assert (await spool.recover()).inbox == ()
