"""The client of `gatehouse chat`: interactive at a terminal, piped otherwise."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from channels.terminal.client.gateway_connection import Connect, connected
from channels.terminal.client.piped import PipedChat, read_all, read_lines
from gateway.errors import GatehouseError
from gateway.text import printable

EXIT_FAILED = 1
HINT = "Type /help for commands. Ctrl-C stops an answer; Ctrl-D or /quit leaves."


async def chat(
    connect: Connect, *, words: Sequence[str], once: bool, patience: float, data_dir: Path, where: str
) -> int:
    """Run one chat and return its exit code. Any error ends it with a sentence on stderr.

    `where` describes the gateway that `connect` opens. `patience` limits the seconds per answer in a piped chat.
    """
    code = EXIT_FAILED
    try:
        if not once and sys.stdin.isatty() and sys.stdout.isatty():
            # prompt_toolkit is slow to import, and a piped chat does not need it.
            from channels.terminal.client.interactive import InteractiveChat  # noqa: PLC0415
            from channels.terminal.client.prompt import ChatPrompt  # noqa: PLC0415

            interactive = InteractiveChat(ChatPrompt(data_dir / "chat_history"))
            async with connected(connect, interactive.receive) as connection:
                print(f"{printable(where)}\n{HINT}\n")
                code = await interactive.run(connection)
        else:
            piped = PipedChat(out=sys.stdout, err=sys.stderr, answer_timeout=patience)
            async with connected(connect, piped.receive) as connection:
                if not once:
                    code = await piped.send_each(connection, read_lines(sys.stdin.fileno()))
                else:
                    text = " ".join(words) if words else await read_all(sys.stdin.fileno())
                    code = await piped.send(connection, text)
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


def _discard_output() -> None:
    """Send buffered output to /dev/null. Python would fail once more when it flushes stdout at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stdout.fileno())
