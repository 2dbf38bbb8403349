"""The pipe to a coding agent keeps its limits."""

import asyncio
import json
import os

import pytest

from gateway.acp import transport
from gateway.acp.transport import MAX_GARBAGE_LINES, MAX_UNANSWERED, AgentTransport


async def open_transport(data: bytes, *, is_closed: bool = True, output: int | None = None) -> AgentTransport:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    if is_closed:
        reader.feed_eof()
    stdin = os.fdopen(os.open(os.devnull, os.O_WRONLY) if output is None else output, "wb")
    pipe, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, stdin)
    return AgentTransport(reader, asyncio.StreamWriter(pipe, protocol, None, loop))


def line(**message: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"


async def test_messages_come_in_order_and_noise_is_skipped() -> None:
    pipe = await open_transport(line(id=1, result=1) + b"a warning\n\n[1]\n" + line(id=2, result=2))
    assert [(await pipe.receive() or {})["id"] for _ in range(2)] == [1, 2]
    assert await pipe.receive() is None
    assert pipe.fault == ""
    await pipe.close()


async def test_garbage_without_end_is_a_fault() -> None:
    pipe = await open_transport(b"nonsense\n" * (MAX_GARBAGE_LINES + 1), is_closed=False)
    assert await pipe.receive() is None
    assert "not JSON-RPC" in pipe.fault
    await pipe.close()


async def test_a_huge_message_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_LINE_BYTES", 1024)
    pipe = await open_transport(b"[" + b"1," * 1024 + b"1]\n", is_closed=False)
    assert await pipe.receive() is None
    assert "more than" in pipe.fault
    await pipe.close()


async def test_reads_no_more_while_too_many_requests_are_unanswered() -> None:
    requests = b"".join(line(id=number, method="fs/read_text_file") for number in range(MAX_UNANSWERED + 1))
    pipe = await open_transport(requests)
    for _ in range(MAX_UNANSWERED):
        assert await pipe.receive() is not None
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await pipe.receive()
    await pipe.send({"jsonrpc": "2.0", "id": 0, "result": {}})
    assert (await pipe.receive() or {})["id"] == MAX_UNANSWERED
    await pipe.close()


async def test_reads_no_more_while_it_is_paused() -> None:
    pipe = await open_transport(line(method="session/update"))
    pipe.pause()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await pipe.receive()
    pipe.resume()
    assert await pipe.receive() is not None
    await pipe.close()


async def test_reads_no_more_requests_while_their_answers_are_not_read() -> None:
    """A program that asks for files and reads nothing would fill the memory with the answers."""
    requests = b"".join(line(id=number, method="fs/read_text_file") for number in range(MAX_UNANSWERED + 1))
    stdin, write_end = os.pipe()
    pipe = await open_transport(requests, output=write_end)
    for _ in range(MAX_UNANSWERED):
        assert await pipe.receive() is not None
    async with asyncio.TaskGroup() as group:
        answer = {"jsonrpc": "2.0", "id": 0, "result": "x" * 1_000_000}
        sent = group.create_task(pipe.send(answer))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await pipe.receive()
        drained = group.create_task(asyncio.to_thread(lambda: [*iter(lambda: os.read(stdin, 65_536), b"")]))
        await sent
        assert (await pipe.receive() or {})["id"] == MAX_UNANSWERED
        await pipe.close()
        await drained
    os.close(stdin)
