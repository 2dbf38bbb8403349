"""A person at the keyboard, of whom prompt_toolkit sees the keys; what a real terminal shows is in tests/cli."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from channels.terminal.exchange import Exchange
from channels.terminal.interactive import Interactive
from channels.terminal.keyboard import Prompt
from channels.terminal.link import Link, linked
from channels.websocket.wire import ServerFrame
from tests.channels.terminal.scripted import QUICKLY, Client, Script, echoing, gateway

CTRL_C, CTRL_D, UP, ALT_ENTER = "\x03", "\x04", "\x1b[A", "\x1b\r"


class Person:
    """Presses keys at the prompt; `interrupt` is Ctrl-C while an answer is on its way."""

    def __init__(self, keys: PipeInput, history: Path) -> None:
        self.type = keys.send_text
        self.press = keys.send_bytes
        self.interrupt: Callable[[], None] | None = None
        self.chat = Interactive(Prompt(history), self._listening)

    @contextmanager
    def _listening(self, interrupt: Callable[[], None]) -> Iterator[None]:
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
async def _linked(person: Person, script: Script) -> AsyncIterator[Link]:
    async with gateway(script) as connect, linked(connect, person.chat.hear, pauses=QUICKLY) as link:
        yield link


async def test_types_reads_and_leaves(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    async with _linked(person, echoing) as link:
        person.type(f"hello\r\r  \r{CTRL_D}")
        assert await person.chat.converse(link) == 0
    assert capsys.readouterr().out == "You said: hello\n\n"


async def test_quit_leaves(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    async with _linked(person, echoing) as link:
        person.type("/Quit \r")
        assert await person.chat.converse(link) == 0
    assert capsys.readouterr().out == ""


async def test_ctrl_c_at_the_prompt_empties_the_line(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    async with _linked(person, echoing) as link:
        person.type(f"never mind{CTRL_C}hello\r{CTRL_D}")
        await person.chat.converse(link)
    assert capsys.readouterr().out == "You said: hello\n\n"


async def test_arrow_up_brings_back_what_an_earlier_chat_sent(
    person: Person, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with _linked(person, echoing) as link:
        person.type(f"remember me\r{CTRL_D}")
        await person.chat.converse(link)
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        later = Person(keys, tmp_path / "history")
        async with _linked(later, echoing) as link:
            later.type(f"{UP}!\r{CTRL_D}")
            await later.chat.converse(link)
    assert capsys.readouterr().out == "You said: remember me\n\nYou said: remember me!\n\n"


async def test_several_lines_are_one_message(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    async with _linked(person, echoing) as link:
        person.type(f"\x1b[200~pasted\nlines\x1b[201~\rtyped{ALT_ENTER}lines\r{CTRL_D}")
        await person.chat.converse(link)
    assert capsys.readouterr().out == "You said: pasted\nlines\n\nYou said: typed\nlines\n\n"


async def test_bytes_that_are_no_text_do_not_end_the_chat(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    async with _linked(person, echoing) as link:
        person.press(b"caf\xe9\r\x04")
        await person.chat.converse(link)
    assert capsys.readouterr().out == "You said: caf\ufffd\n\n"


async def test_an_answer_is_shown_as_it_is_written(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    async def streaming(client: Client) -> None:
        said = await client.heard()
        await client.ack(said)
        for draft in ("One", "One, two", "One, two, three"):
            await client.draft(draft, to=said)
        await client.draft("another's", to={"id": "another"}, key="other")
        await client.message("One, two, three.", to=said)
        await client.stay()

    shown: list[str] = []

    def watched(frame: ServerFrame, exchange: Exchange | None) -> None:
        person.chat.hear(frame, exchange)
        shown.append(capsys.readouterr().out)

    async with gateway(streaming) as connect, linked(connect, watched) as link:
        person.type(f"count\r{CTRL_D}")
        await person.chat.converse(link)
    assert [text for text in shown if text] == ["One", ", two", ", three", ".\n\n"]


async def test_what_comes_by_itself_does_not_break_into_an_answer(
    person: Person, capsys: pytest.CaptureFixture[str]
) -> None:
    async def interrupting(client: Client) -> None:
        said = await client.heard()
        await client.ack(said)
        await client.message("You have\x1b[2J mail.", kind="notice", key="first")
        await client.draft("Well", to=said)
        await client.message("A notice.", kind="notice", key="second")
        await client.show("echo", id="e", text="from my phone", at="2026-03-01T12:00:00Z")
        await client.message("Well done.", to=said)
        await client.stay()

    async with _linked(person, interrupting) as link:
        person.type(f"go\r{CTRL_D}")
        await person.chat.converse(link)
    out = capsys.readouterr().out
    assert out == "You have[2J mail.\n\nWell done.\n\nA notice.\n\n(you, elsewhere) from my phone\n\n"


async def test_a_failure_is_told_and_the_chat_goes_on(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    async def failing(client: Client) -> None:
        said = await client.heard()
        await client.show("error", text="Too long.", id=said["id"])
        said = await client.heard()
        await client.message("No.", kind="notice", to=said, key="no")
        await client.ack(said, "refused")
        await echoing(client)

    async with _linked(person, failing) as link:
        person.type(f"one\rtwo\rthree\r{CTRL_D}")
        await person.chat.converse(link)
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
        await client.message("On and on\n\n*Stopped.*", to=said)
        await client.stay()

    async with _linked(person, endless) as link:
        person.type(f"talk\r{CTRL_D}")
        await person.chat.converse(link)
    assert heard == ["/stop"]
    assert capsys.readouterr().out == "On and on\n\n*Stopped.*\n\n"


async def test_ctrl_c_twice_waits_no_longer(person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    async def deaf(client: Client) -> None:
        await client.ack(await client.heard())
        person.press_ctrl_c()
        await client.heard()
        person.press_ctrl_c()
        await client.stay()

    async with _linked(person, deaf) as link:
        person.type(f"talk\r{CTRL_D}")
        await person.chat.converse(link)
    assert "No longer waiting" in capsys.readouterr().out


async def test_a_stopped_message_that_never_got_its_turn_ends_with_the_gateways_word(
    person: Person, capsys: pytest.CaptureFixture[str]
) -> None:
    async def dropping(client: Client) -> None:
        await client.ack(await client.heard())
        person.press_ctrl_c()
        stop = await client.heard()
        await client.message("Stopped. 1 waiting message dropped.", kind="notice", to=stop)
        await client.ack(stop)
        await client.stay()

    async with _linked(person, dropping) as link:
        person.type(f"talk\r{CTRL_D}")
        await person.chat.converse(link)
    assert capsys.readouterr().out == "Stopped. 1 waiting message dropped.\n\n"


async def test_the_prompt_gives_way_when_the_gateway_is_lost(person: Person) -> None:
    async def leaving(client: Client) -> None:
        await client.show("commands", commands=[])

    with pytest.RaisesGroup(pytest.RaisesExc(Exception, match="did not come back")):
        async with asyncio.timeout(60), _linked(person, leaving) as link:
            await person.chat.converse(link)
