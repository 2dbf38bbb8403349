"""Tests of stderr, through a real pipe."""

import asyncio

import pytest
from structlog.testing import capture_logs

from gateway.mcp.server import StderrTail
from tests.polling import until


async def until_heard(words: StderrTail, line: str) -> None:
    await until(lambda: words.line == line)


async def test_the_newest_line_is_kept() -> None:
    words = StderrTail("sums")
    async with words.listening() as file:
        for line in ("first", "the key is wrong"):
            print(line, file=file, flush=True)
        await until_heard(words, "the key is wrong")
    assert words.line == "the key is wrong"


async def test_an_overlong_line_does_not_stop_the_reader() -> None:
    words = StderrTail("sums")
    async with words.listening() as file:
        print("x" * 40_000, file=file, flush=True)
        print("after it", file=file, flush=True)
        await until_heard(words, "after it")


async def test_of_a_flood_of_lines_only_the_newest_are_decoded() -> None:
    words = StderrTail("sums")
    with capture_logs() as logged:
        async with words.listening() as file:
            await asyncio.to_thread(lambda: print("y\n" * 100_000 + "the end", file=file, flush=True))
            await until_heard(words, "the end")
    assert len(logged) < 10_000


async def test_a_cancellation_at_the_end_is_not_swallowed() -> None:
    async def listen() -> None:
        async with StderrTail("sums").listening():
            task.cancel()  # It takes effect at the next pause, which is on the way out.

    task = asyncio.create_task(listen())
    with pytest.raises(asyncio.CancelledError):
        await task
