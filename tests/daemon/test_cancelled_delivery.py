"""Channels that are cancelled while a message of theirs is on its way to the disk: it is taken, and in its place."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from channels.loopback import LoopbackChannel
from gateway.contract import Verdict
from gateway.daemon import Daemon
from tests.daemon.harness import Parrot, gateway, message, replies, settings, transcript_json


@asynccontextmanager
async def slow_disk(daemon: Daemon) -> AsyncIterator[None]:
    """While inside, nothing reaches the disk."""
    gate = threading.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(daemon.spool._writer.run(lambda _: gate.wait()), name="gate")  # noqa: SLF001 - no other way
        try:
            yield
        finally:
            gate.set()


async def one_leaves_before_another(daemon: Daemon, chat: LoopbackChannel, one: str, other: str) -> Verdict:
    """Send two messages on a slow disk, and cancel the delivery of the first."""
    async with asyncio.TaskGroup() as tasks, slow_disk(daemon):
        leaving = tasks.create_task(chat.submit(message(one, one)), name="leaving")
        await _as_far_as_it_gets()
        leaving.cancel()
        staying = tasks.create_task(chat.submit(message(other, other)), name="staying")
        await _as_far_as_it_gets()
    assert leaving.cancelled()
    return staying.result()


async def _as_far_as_it_gets() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_one_session_is_started_even_if_the_first_delivery_is_cancelled(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path), Parrot.answering) as (daemon, chat):
        assert await one_leaves_before_another(daemon, chat, "first", "second") is Verdict.ACCEPTED
        assert await replies(chat, 2) == ["heard: first", "heard: second"]


async def test_turns_do_not_overlap_even_if_the_first_delivery_is_cancelled(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path), Parrot.answering) as (daemon, chat):
        await chat.submit(message("hello", "hello"))
        assert await replies(chat, 1) == ["heard: hello"]
        assert await one_leaves_before_another(daemon, chat, "first", "second") is Verdict.ACCEPTED
        assert await replies(chat, 2) == ["heard: first", "heard: second"]
    entries = [entry["type"] for entry in transcript_json(tmp_path) if "turn" in entry]
    assert entries == ["user", "assistant", "turn_end"] * 3
