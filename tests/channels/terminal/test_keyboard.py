import asyncio
import os
import pty
import signal
import termios
from collections.abc import Iterator

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from channels.terminal.keyboard import CommandCompleter, answering
from gateway.contract import CommandInfo


def _completed(typed: str) -> list[str]:
    completer = CommandCompleter()
    completer.commands = [
        CommandInfo(name=name, arguments="", summary=f"About {name}") for name in ("new", "session list", "stop")
    ]
    return [completion.text for completion in completer.get_completions(Document(typed), CompleteEvent())]


def test_completes_commands_of_the_gateway_and_its_own() -> None:
    assert _completed("/") == ["/new", "/session list", "/stop", "/quit"]
    assert _completed("/s") == ["/session list", "/stop"]
    assert _completed("/session l") == ["/session list"]
    assert _completed("/Q") == ["/quit"]


def test_leaves_everything_else_alone() -> None:
    assert _completed("") == []
    assert _completed("see /n") == []
    assert _completed("/x") == []


@pytest.fixture
def terminal() -> Iterator[int]:
    outer, inner = pty.openpty()
    yield inner
    os.close(outer)
    os.close(inner)


async def test_ctrl_c_is_ours_while_an_answer_is_on_its_way(terminal: int) -> None:
    interrupted = asyncio.Event()
    before = signal.getsignal(signal.SIGINT)
    with answering(interrupted.set, terminal):
        os.kill(os.getpid(), signal.SIGINT)
        async with asyncio.timeout(60):
            await interrupted.wait()
    assert signal.getsignal(signal.SIGINT) is before


async def test_keys_are_not_echoed_meanwhile_and_the_terminal_is_left_as_it_was(terminal: int) -> None:
    before = termios.tcgetattr(terminal)
    with answering(lambda: None, terminal):
        local = termios.tcgetattr(terminal)[3]
        assert not local & (termios.ECHO | termios.ICANON)
        assert local & termios.ISIG
    assert termios.tcgetattr(terminal) == before
