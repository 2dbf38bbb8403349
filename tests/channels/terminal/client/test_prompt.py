import asyncio
import os
import pty
import signal
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import InMemoryHistory

from channels.terminal.client.prompt import MAX_HISTORY_SIZE, CommandCompleter, interruptible, open_history
from gateway.contract import CommandInfo


def _completed(typed: str) -> list[str]:
    completer = CommandCompleter()
    completer.commands = [
        CommandInfo(name=name, arguments="", summary=f"About {name}") for name in ("new", "session list", "stop")
    ]
    return [completion.text for completion in completer.get_completions(Document(typed), CompleteEvent())]


def test_completes_the_commands_of_the_gateway_and_quit() -> None:
    assert _completed("/") == ["/new", "/session list", "/stop", "/quit"]
    assert _completed("/s") == ["/session list", "/stop"]
    assert _completed("/session l") == ["/session list"]
    assert _completed("/Q") == ["/quit"]


def test_completes_nothing_else() -> None:
    assert _completed("") == []
    assert _completed("see /n") == []
    assert _completed("/x") == []


@pytest.fixture
def terminal() -> Iterator[int]:
    outer, inner = pty.openpty()
    yield inner
    os.close(outer)
    os.close(inner)


async def test_ctrl_c_during_an_answer_calls_interrupt(terminal: int) -> None:
    interrupted = asyncio.Event()
    before = signal.getsignal(signal.SIGINT)
    with interruptible(interrupted.set, terminal):
        os.kill(os.getpid(), signal.SIGINT)
        async with asyncio.timeout(60):
            await interrupted.wait()
    assert signal.getsignal(signal.SIGINT) is before


async def test_keys_are_not_echoed_during_an_answer_and_the_terminal_is_restored(terminal: int) -> None:
    before = termios.tcgetattr(terminal)
    with interruptible(lambda: None, terminal):
        local = termios.tcgetattr(terminal)[3]
        assert not local & (termios.ECHO | termios.ICANON)
        assert local & termios.ISIG
    assert termios.tcgetattr(terminal) == before


async def _history_lines(path: Path) -> list[str]:
    return [line async for line in open_history(path).load()]


@pytest.mark.parametrize("kind", ["pipe", "link to itself", "folder"])
def test_something_else_in_the_place_of_the_history_is_left_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "history"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path.name)
    history = open_history(path)
    history.append_string("hello")
    assert history.get_strings() == ["hello"]
    assert list(tmp_path.iterdir()) == [path]


async def test_history_is_newest_first(tmp_path: Path) -> None:
    history = open_history(tmp_path / "history")
    history.append_string("one")
    history.append_string("two\nlines")
    assert await _history_lines(tmp_path / "history") == ["two\nlines", "one"]


def test_the_history_file_is_private_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        open_history(tmp_path / "history").append_string("secret")
    finally:
        os.umask(before)
    assert (tmp_path / "history").stat().st_mode & 0o777 == 0o600


async def test_the_history_accepts_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    open_history(tmp_path / "history").append_string("caf\udce9")
    assert await _history_lines(tmp_path / "history") == ["caf?"]


async def test_a_long_history_drops_its_oldest_entries(tmp_path: Path) -> None:
    path = tmp_path / "history"
    history = open_history(path)
    for number in range(12):
        history.append_string(f"{number} {'x' * (MAX_HISTORY_SIZE // 10)}")
    numbers = [int(line.split()[0]) for line in await _history_lines(path)]
    assert numbers == list(range(11, 11 - len(numbers), -1))
    assert 1 < len(numbers) < 8
    assert path.stat().st_size <= MAX_HISTORY_SIZE


def test_without_a_writable_folder_the_history_is_in_memory(tmp_path: Path) -> None:
    assert isinstance(open_history(tmp_path / "missing" / "history"), InMemoryHistory)


def test_the_history_file_must_not_be_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "history").symlink_to(tmp_path / "elsewhere")
    assert isinstance(open_history(tmp_path / "history"), InMemoryHistory)
    assert not (tmp_path / "elsewhere").exists()
