import asyncio
import io
from collections.abc import AsyncIterator

import pytest

from channels.terminal.link import linked
from channels.terminal.piped import EXIT_EMPTY, EXIT_UNANSWERED, Pipe
from tests.channels.terminal.scripted import Client, echoing, gateway


@pytest.fixture
def pipe() -> Pipe:
    return Pipe(out=io.StringIO(), err=io.StringIO(), patience=10.0)


def _out(pipe: Pipe) -> str:
    assert isinstance(pipe.out, io.StringIO)
    return pipe.out.getvalue()


def _err(pipe: Pipe) -> str:
    assert isinstance(pipe.err, io.StringIO)
    return pipe.err.getvalue()


async def _lines(*lines: str) -> AsyncIterator[str]:
    for line in lines:
        yield line


async def test_prints_only_the_answer(pipe: Pipe) -> None:
    async with gateway(echoing) as connect, linked(connect, pipe.hear) as link:
        assert await pipe.send(link, "two\nlines\n") == 0
    assert _out(pipe) == "You said: two\nlines\n"
    assert _err(pipe) == ""


async def test_answers_line_after_line_and_skips_the_blank(pipe: Pipe) -> None:
    async with gateway(echoing) as connect, linked(connect, pipe.hear) as link:
        assert await pipe.send_each(link, _lines("one", "", "  ", "two")) == 0
    assert _out(pipe) == "You said: one\nYou said: two\n"


async def test_quit_ends_the_lines(pipe: Pipe) -> None:
    async with gateway(echoing) as connect, linked(connect, pipe.hear) as link:
        assert await pipe.send_each(link, _lines("one", "/QUIT", "two")) == 0
    assert _out(pipe) == "You said: one\n"


@pytest.mark.parametrize("text", ["", " \n\t\n"])
async def test_empty_input_is_wrong_usage(pipe: Pipe, text: str) -> None:
    async with gateway(echoing) as connect, linked(connect, pipe.hear) as link:
        assert await pipe.send(link, text) == EXIT_EMPTY
        assert await pipe.send_each(link, _lines(*text.split("\n"))) == EXIT_EMPTY
    assert _err(pipe).count("the input is empty") == 2
    assert _out(pipe) == ""


async def test_a_refusal_goes_to_stderr_and_the_other_lines_are_still_answered(pipe: Pipe) -> None:
    async def refusing_the_first(client: Client) -> None:
        said = await client.heard()
        await client.message("That was too long.", kind="notice", to=said)
        await client.ack(said, "refused")
        await echoing(client)

    async with gateway(refusing_the_first) as connect, linked(connect, pipe.hear) as link:
        assert await pipe.send_each(link, _lines("one", "two")) == EXIT_UNANSWERED
    assert _err(pipe) == "gatehouse: That was too long.\n"
    assert _out(pipe) == "You said: two\n"


async def test_an_error_goes_to_stderr(pipe: Pipe) -> None:
    async def failing(client: Client) -> None:
        said = await client.heard()
        await client.show("error", text="This is too long.", id=said["id"])
        await client.stay()

    async with gateway(failing) as connect, linked(connect, pipe.hear) as link:
        assert await pipe.send(link, "hi") == EXIT_UNANSWERED
    assert _err(pipe) == "gatehouse: This is too long.\n"


async def test_does_not_wait_longer_than_asked(pipe: Pipe) -> None:
    impatient = Pipe(out=pipe.out, err=pipe.err, patience=0.05)
    async with gateway(Client.stay) as connect, linked(connect, impatient.hear) as link:
        assert await impatient.send(link, "anybody there?") == EXIT_UNANSWERED
    assert _err(pipe) == "gatehouse: No answer came within 0.05 seconds to: anybody there?\n"


async def test_what_waited_for_somebody_to_come_is_shown_beside_the_answer(pipe: Pipe) -> None:
    async def noting(client: Client) -> None:
        await client.message("While you were away.", kind="notice", key="note")
        await client.message("Said to another.", to={"id": "another"}, key="other")
        await client.show("error", text="Odd.")
        await echoing(client)

    async with gateway(noting) as connect, linked(connect, pipe.hear) as link:
        await pipe.send(link, "hi")
    assert _err(pipe) == "gatehouse: While you were away.\ngatehouse: Odd.\n"
    assert _out(pipe) == "You said: hi\n"


async def test_no_escape_sequence_reaches_the_output(pipe: Pipe) -> None:
    async with gateway(echoing) as connect, linked(connect, pipe.hear) as link:
        await pipe.send(link, "\x1b[2Jhi\x9b1m")
    assert _out(pipe) == "You said: [2Jhi1m\n"


async def test_a_reader_who_takes_nothing_does_not_block_the_loop(pipe: Pipe) -> None:
    """The gateway itself may run in the same loop."""

    class Stuck(io.StringIO):
        def write(self, text: str) -> int:
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(10)
            return super().write(text)

    loop = asyncio.get_running_loop()
    stuck = Pipe(out=Stuck(), err=pipe.err, patience=10.0)
    async with gateway(echoing) as connect, linked(connect, stuck.hear) as link:
        assert await stuck.send(link, "hi") == 0
