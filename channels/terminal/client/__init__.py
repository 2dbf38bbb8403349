"""The client of `gatehouse chat`: interactive at a terminal, piped otherwise."""

import os
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

import msgspec

from channels.terminal.client.gateway_connection import Connect, PendingMessage, connected
from channels.terminal.client.piped import PipedChat, read_all, read_lines
from channels.websocket.wire import CommandsRequest, UploadedFile
from gateway.errors import GatehouseError, Refused
from gateway.text import printable

EXIT_FAILED = 1
HINT = "Type /help for commands. Ctrl-C stops an answer; Ctrl-D or /quit leaves."
MAX_STDIN_FILE = 16 * 1024 * 1024
"""In bytes. A longer text next to a message is refused."""
STDIN_FILE = "stdin.txt"
STDIN_LABEL = "[Text from standard input]"

Upload = Callable[[str, BinaryIO | bytes], Awaitable[Mapping[str, object]]]
"""Stores a file with a name in the gateway. Returns the fields of `UploadedFile`."""


async def chat(
    connect: Connect,
    *,
    upload: Upload,
    words: Sequence[str],
    once: bool,
    model: str | None,
    files: Sequence[Path],
    patience: float,
    data_dir: Path,
    where: str,
) -> int:
    """Run one chat and return its exit code. Any error ends it with a sentence on stderr.

    `where` describes the gateway that `connect` opens. `patience` limits the seconds per answer in a piped chat. The
    `files` go with the first message.
    """
    code = EXIT_FAILED
    try:
        uploaded = tuple([await _upload(upload, path) for path in files])
        if not once and sys.stdin.isatty() and sys.stdout.isatty():
            # prompt_toolkit and rich are slow to import, and a piped chat does not need them.
            from channels.terminal.client.answer_view import PlainAnswer, StyledAnswer  # noqa: PLC0415
            from channels.terminal.client.interactive import InteractiveChat  # noqa: PLC0415
            from channels.terminal.client.markdown import TerminalText  # noqa: PLC0415
            from channels.terminal.client.prompt import ChatPrompt  # noqa: PLC0415

            style = TerminalText(has_colour=not os.environ.get("NO_COLOR"))
            is_dumb = os.environ.get("TERM", "dumb") in {"", "dumb"}
            styled = partial(StyledAnswer, style, shutil.get_terminal_size, time.monotonic)
            prompt = ChatPrompt(data_dir / "chat_history")
            interactive = InteractiveChat(prompt, new_view=PlainAnswer if is_dumb else styled, files=uploaded)
            # The prompt completes their names, and they may change while the connection is lost.
            commands = CommandsRequest()
            async with connected(connect, interactive.receive, requests=[commands]) as connection:
                width = shutil.get_terminal_size().columns
                print(*style.plain(where, width), *style.plain(HINT, width), sep="\n")
                if model is not None:
                    chosen = await connection.ask(PendingMessage(f"/model {model}"))
                    if not chosen.is_answer:
                        raise Refused(chosen.text)
                    print(printable(chosen.text))
                for file in uploaded:
                    print(f"{printable(file.name)} goes with your first message.")
                print()
                code = await interactive.run(connection)
        else:
            piped = PipedChat(out=sys.stdout, err=sys.stderr, answer_timeout=patience)
            stdin = sys.stdin.fileno()
            async with connected(connect, piped.receive) as connection:
                if model is not None and not await piped.choose_model(connection, model):
                    return EXIT_FAILED
                if not once:
                    return await piped.send_each(connection, read_lines(stdin), uploaded)
                text = " ".join(words)
                if not text and not (uploaded and sys.stdin.isatty()):
                    text = await read_all(stdin)
                elif text and not sys.stdin.isatty():
                    added = await piped.read_beside(stdin, limit=MAX_STDIN_FILE)
                    whole = f"{text}\n\n{STDIN_LABEL}\n{added}" if added.strip() else text
                    if whole != text and len(whole) > await connection.max_text_chars():
                        content = await upload(STDIN_FILE, added.encode())
                        uploaded = (*uploaded, msgspec.convert(content, UploadedFile))
                    else:
                        text = whole
                code = await piped.send(connection, text, uploaded)
    # `except*`, because `connected` runs a task group, which raises exception groups.
    except* GatehouseError as errors:
        for error in errors.exceptions:
            print(f"gatehouse: {printable(str(error))}", file=sys.stderr)
    except* BrokenPipeError:
        _discard_output()  # The reader of our output has left, as `| head` does.
    except* OSError as errors:
        _discard_output()
        print(f"gatehouse: The answer couldn't be written: {errors.exceptions[0]}", file=sys.stderr)
    return code


async def _upload(upload: Upload, path: Path) -> UploadedFile:
    try:
        with path.open("rb") as file:
            return msgspec.convert(await upload(path.name, file), UploadedFile)
    except OSError as error:
        raise Refused(f"Can't read {path}: {error.strerror}.") from error


def _discard_output() -> None:
    """Send buffered output to /dev/null. Python would fail once more when it flushes stdout at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stdout.fileno())
