import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.websocket.send_queue import CALM, MAX_BYTES, MAX_FRAMES, Outlet
from channels.websocket.wire import Draft, Failure, Message
from tests.channels.websocket.harness import NOON


class Line:
    """An outlet whose abort is counted."""

    def __init__(self) -> None:
        self.aborts = 0
        self.outlet = Outlet(abort=self._abort)

    def _abort(self) -> None:
        self.aborts += 1

    async def read(self) -> dict[str, Any]:
        async with asyncio.timeout(60):
            decoded: dict[str, Any] = json.loads(await self.outlet.next())
        return decoded


def message(key: str, text: str = "whole") -> Message:
    return Message(key=key, kind="reply", text=text, at=NOON)


async def test_frames_leave_in_the_order_they_came() -> None:
    line = Line()
    for number in range(3):
        line.outlet.offer(Failure(text=str(number)))
    assert [(await line.read())["text"] for _ in range(3)] == ["0", "1", "2"]


async def test_a_newer_draft_takes_the_place_of_one_that_waits() -> None:
    line = Line()
    line.outlet.offer(Draft(key="a", text="one"))
    line.outlet.offer(Draft(key="b", text="other"))
    line.outlet.offer(Draft(key="a", text="one two"))
    assert [(await line.read())["text"] for _ in range(2)] == ["one two", "other"]


async def test_the_whole_message_makes_its_draft_needless() -> None:
    line = Line()
    line.outlet.offer(Draft(key="a", text="so far"))
    line.outlet.offer(message("a"))
    assert (await line.read())["type"] == "message"
    assert line.outlet.unsent() == []


async def test_a_full_queue_gives_up_drafts_before_the_connection() -> None:
    line = Line()
    for number in range(MAX_FRAMES + 10):
        line.outlet.offer(Draft(key=f"d{number}", text="so far"))
    assert len(line.outlet.unsent()) == MAX_FRAMES
    line.outlet.offer(message("m"))
    assert line.outlet.unsent() == [message("m")]
    assert line.aborts == 0


async def test_a_reader_who_takes_nothing_is_cut_off_once() -> None:
    line = Line()
    for number in range(MAX_FRAMES * 2):
        line.outlet.offer(message(f"m{number}"))
    assert line.aborts == 1
    assert len(line.outlet.unsent()) == MAX_FRAMES


async def test_bytes_are_bounded_too() -> None:
    line = Line()
    for number in range(20):
        line.outlet.offer(message(f"m{number}", "x" * (MAX_BYTES // 8)))
    assert line.aborts == 1
    assert sum(len(frame.text) for frame in line.outlet.unsent() if isinstance(frame, Message)) <= MAX_BYTES * 9 / 8


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
async def test_whatever_is_offered_the_last_word_on_each_key_arrives(offers: list[tuple[str, bool]]) -> None:
    line = Line()
    for number, (key, is_draft) in enumerate(offers):
        line.outlet.offer(Draft(key=key, text=str(number)) if is_draft else message(key, str(number)))
    waiting = [await line.read() for _ in line.outlet.unsent()]
    seen = {frame["key"]: frame["text"] for frame in waiting}
    assert seen == {key: str(number) for number, (key, _) in enumerate(offers)}
    assert line.outlet.unsent() == []


async def test_who_does_not_read_is_not_listened_to() -> None:
    line = Line()
    async with asyncio.timeout(60):
        await line.outlet.calm()
    for number in range(CALM):
        line.outlet.offer(Failure(text=str(number)))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await line.outlet.calm()
    await line.read()
    async with asyncio.timeout(60):
        await line.outlet.calm()
