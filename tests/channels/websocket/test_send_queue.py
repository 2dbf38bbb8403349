import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.websocket.send_queue import MAX_BYTES, MAX_FRAMES, PAUSE_READING_AT, SendQueue
from channels.websocket.wire import DraftFrame, ErrorFrame, MessageFrame
from tests.channels.websocket.harness import NOON


class Client:
    """A send queue and the number of its aborts."""

    def __init__(self) -> None:
        self.aborts = 0
        self.queue = SendQueue(abort=self._abort)

    def _abort(self) -> None:
        self.aborts += 1

    async def read(self) -> dict[str, Any]:
        async with asyncio.timeout(60):
            decoded: dict[str, Any] = json.loads(await self.queue.get())
        return decoded


def message(key: str, text: str = "whole") -> MessageFrame:
    return MessageFrame(key=key, kind="reply", text=text, at=NOON)


async def test_frames_are_sent_in_order() -> None:
    client = Client()
    for number in range(3):
        client.queue.put(ErrorFrame(text=str(number)))
    assert [(await client.read())["text"] for _ in range(3)] == ["0", "1", "2"]


async def test_a_newer_draft_replaces_an_unsent_one() -> None:
    client = Client()
    client.queue.put(DraftFrame(key="a", text="one"))
    client.queue.put(DraftFrame(key="b", text="other"))
    client.queue.put(DraftFrame(key="a", text="one two"))
    assert [(await client.read())["text"] for _ in range(2)] == ["one two", "other"]


async def test_a_finished_message_removes_its_unsent_draft() -> None:
    client = Client()
    client.queue.put(DraftFrame(key="a", text="so far"))
    client.queue.put(message("a"))
    assert (await client.read())["type"] == "message"
    assert client.queue.unsent() == []


async def test_a_full_queue_drops_drafts_before_it_aborts() -> None:
    client = Client()
    for number in range(MAX_FRAMES + 10):
        client.queue.put(DraftFrame(key=f"d{number}", text="so far"))
    assert len(client.queue.unsent()) == MAX_FRAMES
    client.queue.put(message("m"))
    assert client.queue.unsent() == [message("m")]
    assert client.aborts == 0


async def test_a_full_queue_aborts_the_connection_once() -> None:
    client = Client()
    for number in range(MAX_FRAMES * 2):
        client.queue.put(message(f"m{number}"))
    assert client.aborts == 1
    assert len(client.queue.unsent()) == MAX_FRAMES


async def test_the_queue_is_bounded_in_bytes() -> None:
    client = Client()
    for number in range(20):
        client.queue.put(message(f"m{number}", "x" * (MAX_BYTES // 8)))
    assert client.aborts == 1
    assert (
        sum(len(frame.text) for frame in client.queue.unsent() if isinstance(frame, MessageFrame)) <= MAX_BYTES * 9 / 8
    )


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
async def test_the_last_frame_of_each_key_is_sent(puts: list[tuple[str, bool]]) -> None:
    client = Client()
    for number, (key, is_draft) in enumerate(puts):
        client.queue.put(DraftFrame(key=key, text=str(number)) if is_draft else message(key, str(number)))
    waiting = [await client.read() for _ in client.queue.unsent()]
    seen = {frame["key"]: frame["text"] for frame in waiting}
    assert seen == {key: str(number) for number, (key, _) in enumerate(puts)}
    assert client.queue.unsent() == []


async def test_reading_pauses_while_many_frames_wait() -> None:
    client = Client()
    async with asyncio.timeout(60):
        await client.queue.wait_until_short()
    for number in range(PAUSE_READING_AT):
        client.queue.put(ErrorFrame(text=str(number)))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await client.queue.wait_until_short()
    await client.read()
    async with asyncio.timeout(60):
        await client.queue.wait_until_short()
