"""The client of `gatehouse chat`, found by its entry point: decides between a person and a pipe."""

import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from channels.terminal.link import Connect, Hear, Link, linked
from channels.terminal.piped import Pipe
from channels.terminal.stdin import read_all, read_lines
from gateway.errors import GatehouseError
from gateway.text import printable

__all__ = ["chat"]

EXIT_FAILED = 1
HINT = "/help lists the commands. Ctrl-C stops an answer; Ctrl-D or /quit leaves."

Mode = tuple[Hear, Callable[[Link], Awaitable[int]]]
"""What listens to the gateway, and what talks to it until the exit code is known."""


async def chat(
    connect: Connect, *, words: Sequence[str], once: bool, patience: float, data_dir: Path, where: str
) -> int:
    """Run one chat and return the exit code; whatever ends it, the person reads a sentence.

    `where` tells what `connect` leads to. `patience` is in seconds, for each answer, where nobody is at the keyboard.
    """
    code = EXIT_FAILED
    try:
        code = await _converse(connect, _mode(words, once=once, patience=patience, data_dir=data_dir, where=where))
    except* GatehouseError as troubles:
        for trouble in troubles.exceptions:
            print(f"gatehouse: {printable(str(trouble))}", file=sys.stderr)
    except* BrokenPipeError:
        _write_no_more()  # Who read our output has left, as `| head` does.
    except* OSError as troubles:
        _write_no_more()
        print(f"gatehouse: The answer could not be written: {troubles.exceptions[0]}", file=sys.stderr)
    return code


def _write_no_more() -> None:
    """Let go of what is still buffered: Python would complain once more when it closes stdout."""
    os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stdout.fileno())


async def _converse(connect: Connect, mode: Mode) -> int:
    hear, talk = mode
    async with linked(connect, hear) as link:
        return await talk(link)


def _mode(words: Sequence[str], *, once: bool, patience: float, data_dir: Path, where: str) -> Mode:
    if not once and sys.stdin.isatty() and sys.stdout.isatty():
        return _interactive(data_dir / "chat_history", where)
    pipe = Pipe(out=sys.stdout, err=sys.stderr, patience=patience)

    async def talk(link: Link) -> int:
        if not once:
            return await pipe.send_each(link, read_lines(sys.stdin.fileno()))
        return await pipe.send(link, " ".join(words) if words else await read_all(sys.stdin.fileno()))

    return pipe.hear, talk


def _interactive(history: Path, where: str) -> Mode:
    # Line editing takes a while to import; a pipe does not need it.
    from channels.terminal.interactive import Interactive  # noqa: PLC0415
    from channels.terminal.keyboard import Prompt  # noqa: PLC0415

    interactive = Interactive(Prompt(history))

    async def talk(link: Link) -> int:
        print(f"{printable(where)}\n{HINT}\n")
        return await interactive.converse(link)

    return interactive.hear, talk
