import asyncio
import io
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from channels.terminal.client.gateway_connection import connected
from channels.terminal.client.piped import (
    EXIT_EMPTY,
    EXIT_UNANSWERED,
    InputTooLong,
    PipedChat,
    read_all,
    read_lines,
)
from tests.channels.terminal.client.harness import NOON, Client, echoing, gateway


@pytest.fixture
def pipe() -> PipedChat:
    return PipedChat(out=io.StringIO(), err=io.StringIO(), answer_timeout=10.0)


def _out(pipe: PipedChat) -> str:
    assert isinstance(pipe.out, io.StringIO)
    return pipe.out.getvalue()


def _err(pipe: PipedChat) -> str:
    assert isinstance(pipe.err, io.StringIO)
    return pipe.err.getvalue()


async def _lines(*lines: str) -> AsyncIterator[str]:
    for line in lines:
        yield line


async def test_prints_only_the_answer(pipe: PipedChat) -> None:
    async with gateway(echoing) as connect, connected(connect, pipe.receive) as connection:
        assert await pipe.send(connection, "two\nlines\n") == 0
    assert _out(pipe) == "You said: two\nlines\n"
    assert _err(pipe) == ""


async def test_lines_are_answered_one_by_one_and_blank_ones_skipped(pipe: PipedChat) -> None:
    async with gateway(echoing) as connect, connected(connect, pipe.receive) as connection:
        assert await pipe.send_each(connection, _lines("one", "", "  ", "two")) == 0
    assert _out(pipe) == "You said: one\nYou said: two\n"


async def test_quit_ends_the_input(pipe: PipedChat) -> None:
    async with gateway(echoing) as connect, connected(connect, pipe.receive) as connection:
        assert await pipe.send_each(connection, _lines("one", "/QUIT", "two")) == 0
    assert _out(pipe) == "You said: one\n"


@pytest.mark.parametrize("text", ["", " \n\t\n"])
async def test_empty_input_is_a_usage_error(pipe: PipedChat, text: str) -> None:
    async with gateway(echoing) as connect, connected(connect, pipe.receive) as connection:
        assert await pipe.send(connection, text) == EXIT_EMPTY
        assert await pipe.send_each(connection, _lines(*text.split("\n"))) == EXIT_EMPTY
    assert _err(pipe).count("the input is empty") == 2
    assert _out(pipe) == ""


async def test_a_failure_goes_to_stderr_as_plain_text_with_its_details(pipe: PipedChat) -> None:
    async def failing(client: Client) -> None:
        said = await client.heard()
        await client.ack(said)
        text, about = "Half an answer\n\n*`gpt-x` can't be reached.*", {"is_failure": True, "details": "HTTP 502"}
        await client.show("message", key="k", kind="reply", text=text, at=NOON, reply_to=said["id"], **about)
        await client.stay()

    async with gateway(failing) as connect, connected(connect, pipe.receive) as connection:
        assert await pipe.send(connection, "hello") == EXIT_UNANSWERED
    assert _err(pipe) == "gatehouse: Half an answer\n\ngpt-x can't be reached.\nDetails: HTTP 502\n"
    assert _out(pipe) == ""


async def test_a_refusal_goes_to_stderr_and_the_other_lines_are_still_answered(pipe: PipedChat) -> None:
    async def refusing_the_first(client: Client) -> None:
        said = await client.heard()
        await client.message("That was too long.", kind="notice", to=said)
        await client.ack(said, "refused")
        await echoing(client)

    async with gateway(refusing_the_first) as connect, connected(connect, pipe.receive) as connection:
        assert await pipe.send_each(connection, _lines("one", "two")) == EXIT_UNANSWERED
    assert _err(pipe) == "gatehouse: That was too long.\n"
    assert _out(pipe) == "You said: two\n"


async def test_an_error_goes_to_stderr(pipe: PipedChat) -> None:
    async def failing(client: Client) -> None:
        said = await client.heard()
        await client.show("error", text="This is too long.", id=said["id"])
        await client.stay()

    async with gateway(failing) as connect, connected(connect, pipe.receive) as connection:
        assert await pipe.send(connection, "hi") == EXIT_UNANSWERED
    assert _err(pipe) == "gatehouse: This is too long.\n"


async def test_waiting_ends_when_a_stop_in_another_terminal_drops_the_message(pipe: PipedChat) -> None:
    async def stopping(client: Client) -> None:
        said = await client.heard()
        await client.ack(said)
        text, about = "Stopped. 1 waiting message dropped.", {"reply_to": "of another", "unanswered": [said["id"]]}
        await client.show("message", key="k", kind="notice", text=text, at=NOON, **about)
        await client.stay()

    async with gateway(stopping) as connect, connected(connect, pipe.receive) as connection:
        assert await pipe.send(connection, "hi") == EXIT_UNANSWERED
    assert _err(pipe) == "gatehouse: Stopped. 1 waiting message dropped.\n"
    assert _out(pipe) == ""


async def test_waiting_ends_after_the_answer_timeout(pipe: PipedChat) -> None:
    impatient = PipedChat(out=pipe.out, err=pipe.err, answer_timeout=0.05)
    async with gateway(Client.stay) as connect, connected(connect, impatient.receive) as connection:
        assert await impatient.send(connection, "anybody there?") == EXIT_UNANSWERED
    assert _err(pipe) == "gatehouse: No answer came within 0.05 seconds to: anybody there?\n"


async def test_waiting_notices_go_to_stderr(pipe: PipedChat) -> None:
    async def noting(client: Client) -> None:
        await client.message("While you were away.", kind="notice", key="note")
        await client.message("Said to another.", to={"id": "another"}, key="other")
        await client.show("error", text="Odd.")
        await echoing(client)

    async with gateway(noting) as connect, connected(connect, pipe.receive) as connection:
        await pipe.send(connection, "hi")
    assert _err(pipe) == "gatehouse: While you were away.\ngatehouse: Odd.\n"
    assert _out(pipe) == "You said: hi\n"


async def test_escape_sequences_are_not_printed(pipe: PipedChat) -> None:
    async with gateway(echoing) as connect, connected(connect, pipe.receive) as connection:
        await pipe.send(connection, "\x1b[2Jhi\x9b1m")
    assert _out(pipe) == "You said: [2Jhi1m\n"


async def test_a_slow_reader_of_stdout_does_not_block_the_event_loop(pipe: PipedChat) -> None:
    """The connection to the gateway needs the same loop."""

    class Stuck(io.StringIO):
        def write(self, text: str) -> int:
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(10)
            return super().write(text)

    loop = asyncio.get_running_loop()
    stuck = PipedChat(out=Stuck(), err=pipe.err, answer_timeout=10.0)
    async with gateway(echoing) as connect, connected(connect, stuck.receive) as connection:
        assert await stuck.send(connection, "hi") == 0


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    both = os.pipe()
    yield both
    for end in both:
        with suppress(OSError):
            os.close(end)


async def test_reads_a_pipe_to_its_end(ends: tuple[int, int]) -> None:
    os.write(ends[1], b"one\n")
    os.write(ends[1], b"two\n")
    os.close(ends[1])
    assert await read_all(ends[0]) == "one\ntwo\n"


async def test_reads_a_file(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_text("from a file")
    with path.open() as file:
        assert await read_all(file.fileno()) == "from a file"


async def test_bytes_that_are_not_utf8_are_replaced(ends: tuple[int, int]) -> None:
    os.write(ends[1], b"caf\xe9\n\xf0\x9f")
    os.close(ends[1])
    assert [line async for line in read_lines(ends[0])] == ["caf\ufffd", "\ufffd"]


async def test_a_line_is_returned_as_soon_as_it_is_complete(ends: tuple[int, int]) -> None:
    lines = read_lines(ends[0])
    os.write(ends[1], b"first\r\nsec")
    async with asyncio.timeout(60):
        assert await anext(lines) == "first"
    os.write(ends[1], b"ond")
    os.close(ends[1])
    assert await anext(lines) == "second"
    with pytest.raises(StopAsyncIteration):
        await anext(lines)


@pytest.fixture
def endless() -> Iterator[int]:
    with Path("/dev/zero").open("rb") as zeros:
        yield zeros.fileno()


async def test_endless_input_is_refused(endless: int) -> None:
    with pytest.raises(InputTooLong, match="250 kB"):
        await read_all(endless)
    with pytest.raises(InputTooLong):
        await anext(read_lines(endless))


async def test_reading_can_be_cancelled(ends: tuple[int, int]) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await read_all(ends[0])
