"""A user whose keys go to prompt_toolkit. The tests with a real terminal are in tests/cli."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from channels.terminal.client.answer_view import SEPARATOR, PlainAnswer
from channels.terminal.client.gateway_connection import GatewayConnection, PendingMessage, connected
from channels.terminal.client.interactive import InteractiveChat
from channels.terminal.client.prompt import ChatPrompt
from channels.websocket.wire import ServerFrame
from gateway.text import printable
from tests.channels.terminal.client.harness import NO_DELAYS, NOON, Client, Script, echoing, gateway

CTRL_C, CTRL_D, UP, ALT_ENTER = "\x03", "\x04", "\x1b[A", "\x1b\r"


class Person:
    """Presses keys at the prompt; `interrupt` is Ctrl-C during an answer."""

    def __init__(self, keys: PipeInput, history: Path) -> None:
        self.type = keys.send_text
        self.press = keys.send_bytes
        self.interrupt: Callable[[], None] | None = None
        self.chat = InteractiveChat(ChatPrompt(history), self._interruptible)

    @contextmanager
    def _interruptible(self, interrupt: Callable[[], None]) -> Iterator[None]:
        self.interrupt = interrupt
        yield
        self.interrupt = None

    def press_ctrl_c(self) -> None:
        assert self.interrupt is not None
        self.interrupt()


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        yield Person(keys, tmp_path / "history")


@asynccontextmanager
async def _connected(person: Person, script: Script) -> AsyncIterator[GatewayConnection]:
    async with (
        gateway(script) as connect,
        connected(connect, person.chat.receive, retry_delays=NO_DELAYS) as connection,
    ):
        yield connection


async def test_a_message_is_answered_and_ctrl_d_leaves(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    async with _connected(person, echoing) as connection:
        person.type(f"hello\r\r  \r{CTRL_D}")
        assert await person.chat.run(connection) == 0
    assert capsys.readouterr().out == "You said: hello\n\n"


async def test_quit_leaves(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    async with _connected(person, echoing) as connection:
        person.type("/Quit \r")
        assert await person.chat.run(connection) == 0
    assert capsys.readouterr().out == ""


async def test_ctrl_c_at_the_prompt_empties_the_line(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    async with _connected(person, echoing) as connection:
        person.type(f"never mind{CTRL_C}hello\r{CTRL_D}")
        await person.chat.run(connection)
    assert capsys.readouterr().out == "You said: hello\n\n"


async def test_arrow_up_brings_back_a_message_of_an_earlier_chat(
    person: Person, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with _connected(person, echoing) as connection:
        person.type(f"remember me\r{CTRL_D}")
        await person.chat.run(connection)
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        later = Person(keys, tmp_path / "history")
        async with _connected(later, echoing) as connection:
            later.type(f"{UP}!\r{CTRL_D}")
            await later.chat.run(connection)
    assert capsys.readouterr().out == "You said: remember me\n\nYou said: remember me!\n\n"


async def test_several_lines_are_one_message(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    async with _connected(person, echoing) as connection:
        person.type(f"\x1b[200~pasted\nlines\x1b[201~\rtyped{ALT_ENTER}lines\r{CTRL_D}")
        await person.chat.run(connection)
    assert capsys.readouterr().out == "You said: pasted\nlines\n\nYou said: typed\nlines\n\n"


async def test_typed_bytes_that_are_not_utf8_are_replaced(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    async with _connected(person, echoing) as connection:
        person.press(b"caf\xe9\r\x04")
        await person.chat.run(connection)
    assert capsys.readouterr().out == "You said: caf\ufffd\n\n"


async def test_an_answer_is_printed_draft_by_draft(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    async def streaming(client: Client) -> None:
        said = await client.heard()
        await client.ack(said)
        for draft in ("One", "One, two", "One, two, three"):
            await client.draft(draft, to=said)
        await client.draft("another's", to={"id": "another"}, key="other")
        await client.message("One, two, three.", to=said)
        await client.stay()

    shown: list[str] = []

    def watched(frame: ServerFrame, pending: PendingMessage | None) -> None:
        person.chat.receive(frame, pending)
        shown.append(capsys.readouterr().out)

    async with gateway(streaming) as connect, connected(connect, watched) as connection:
        person.type(f"count\r{CTRL_D}")
        await person.chat.run(connection)
    assert [text for text in shown if text] == ["One", ", two", ", three", ".\n\n"]


async def test_notices_wait_for_the_end_of_an_answer(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    async def interrupting(client: Client) -> None:
        said = await client.heard()
        await client.ack(said)
        await client.message("You have\x1b[2J mail.", kind="notice", key="first")
        await client.draft("Well", to=said)
        await client.message("A notice.", kind="notice", key="second")
        await client.show("echo", id="e", text="from my phone", at="2026-03-01T12:00:00Z")
        await client.message("Well done.", to=said)
        await client.stay()

    async with _connected(person, interrupting) as connection:
        person.type(f"go\r{CTRL_D}")
        await person.chat.run(connection)
    out = capsys.readouterr().out
    assert out == "You have[2J mail.\n\nWell done.\n\nA notice.\n\n(you, elsewhere) from my phone\n\n"


async def test_the_chat_goes_on_after_an_error(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    async def failing(client: Client) -> None:
        said = await client.heard()
        await client.show("error", text="Too long.", id=said["id"])
        said = await client.heard()
        await client.message("No.", kind="notice", to=said, key="no")
        await client.ack(said, "refused")
        await echoing(client)

    async with _connected(person, failing) as connection:
        person.type(f"one\rtwo\rthree\r{CTRL_D}")
        await person.chat.run(connection)
    assert capsys.readouterr().out == "Too long.\n\nNo.\n\nYou said: three\n\n"


async def test_ctrl_c_stops_an_answer(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[str] = []

    async def endless(client: Client) -> None:
        said = await client.heard()
        await client.ack(said)
        await client.draft("On and on", to=said)
        person.press_ctrl_c()
        stop = await client.heard()
        heard.append(stop["text"])
        await client.message("Stopped.", kind="notice", to=stop, key="stop")
        await client.ack(stop)
        await client.message("On and on", to=said)
        await client.stay()

    async with _connected(person, endless) as connection:
        person.type(f"talk\r{CTRL_D}")
        await person.chat.run(connection)
    assert heard == ["/stop"]
    assert capsys.readouterr().out == "On and on\n\nStopped.\n\n"


async def test_a_second_ctrl_c_stops_waiting(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    async def deaf(client: Client) -> None:
        await client.ack(await client.heard())
        person.press_ctrl_c()
        await client.heard()
        person.press_ctrl_c()
        await client.stay()

    async with _connected(person, deaf) as connection:
        person.type(f"talk\r{CTRL_D}")
        await person.chat.run(connection)
    assert "Stopped waiting" in capsys.readouterr().out


async def test_a_stopped_message_without_a_turn_ends_with_the_notice_of_the_stop(
    person: Person, capsys: pytest.CaptureFixture[str]
) -> None:
    async def dropping(client: Client) -> None:
        await client.ack(await client.heard())
        person.press_ctrl_c()
        stop = await client.heard()
        await client.message("Stopped. 1 waiting message dropped.", kind="notice", to=stop)
        await client.ack(stop)
        await client.stay()

    async with _connected(person, dropping) as connection:
        person.type(f"talk\r{CTRL_D}")
        await person.chat.run(connection)
    assert capsys.readouterr().out == "Stopped. 1 waiting message dropped.\n\n"


async def test_a_message_that_was_dropped_elsewhere_ends_with_the_notice_of_the_stop(
    person: Person, capsys: pytest.CaptureFixture[str]
) -> None:
    async def dropping(client: Client) -> None:
        said = await client.heard()
        await client.ack(said)
        text = "Stopped. 1 waiting message dropped."
        await client.show("message", key="k", kind="notice", text=text, at=NOON, unanswered=[said["id"]])
        await echoing(client)

    async with _connected(person, dropping) as connection:
        person.type(f"talk\rhi\r{CTRL_D}")
        await person.chat.run(connection)
    assert capsys.readouterr().out == "Stopped. 1 waiting message dropped.\n\nYou said: hi\n\n"


async def test_a_lost_gateway_ends_the_prompt(person: Person) -> None:
    async def leaving(client: Client) -> None:
        await client.show("commands", commands=[])

    with pytest.RaisesGroup(pytest.RaisesExc(Exception, match="didn't come back")):
        async with asyncio.timeout(60), _connected(person, leaving) as connection:
            await person.chat.run(connection)


@given(text=st.text(), cuts=st.lists(st.integers(min_value=0, max_value=50)))
def test_drafts_and_the_rest_add_up_to_the_answer(text: str, cuts: list[int]) -> None:
    printer = PlainAnswer()
    printed = "".join(printer.draft(text[:cut]) for cut in sorted(cuts)) + printer.finish(text)
    assert printed.rstrip() == printable(text).rstrip()
    assert printed.endswith("\n")


@given(drafts=st.lists(st.text()), text=st.text())
def test_the_whole_answer_is_printed_after_any_drafts(drafts: list[str], text: str) -> None:
    printer = PlainAnswer()
    printed = "".join(map(printer.draft, drafts)) + printer.finish(text)
    assert "".join(printed.split()).endswith("".join(printable(text).split()))
    assert printed == printable(printed)


def test_an_answer_that_differs_from_its_drafts_is_printed_whole_after_a_separator() -> None:
    printer = PlainAnswer()
    assert printer.draft("It is ni") == "It is ni"
    assert printer.finish("It was ten.") == f"{SEPARATOR}It was ten.\n"


def test_a_draft_that_does_not_continue_the_text_is_skipped() -> None:
    printer = PlainAnswer()
    printer.draft("one")
    assert printer.draft("two") == ""
    assert printer.draft("one more") == " more"


def test_escape_sequences_are_not_printed() -> None:
    printer = PlainAnswer()
    assert printer.draft("red\x1b[31m") == "red[31m"
    assert printer.finish("red\x1b[31m\x1b]0;owned\x07\r!") == "]0;owned!\n"


def test_trailing_space_of_a_draft_is_ignored() -> None:
    printer = PlainAnswer()
    printer.draft("done ")
    assert printer.finish("done") == "\n"


def test_space_that_became_a_paragraph_break_is_a_continuation() -> None:
    printer = PlainAnswer()
    printer.draft("first ")
    assert printer.finish("first\n\nsecond") == "\n\nsecond\n"
