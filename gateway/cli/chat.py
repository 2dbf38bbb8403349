"""`gatehouse chat`: talk from the terminal, to the running daemon or to one of its own."""

import argparse
import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import structlog

from config import ConfigError, LogFormat, Settings
from gateway.cli.asking import parser
from gateway.cli.exits import EXIT_CONFIG, EXIT_FAILED, EXIT_TERMINATED, complain
from gateway.cli.settings import load_settings
from gateway.control import Control, is_running
from gateway.errors import CannotStart, GatehouseError
from gateway.lock import DataDirTaken, prepare_data_dir
from gateway.logs import configure, secrets_in

if TYPE_CHECKING:
    # Imported where it is needed, see there.
    from gateway.daemon import Daemon

__all__ = ["main"]

log = structlog.get_logger()

CLIENT = "terminal"
"""The name of the client's entry point, and of the channel that it talks to."""
TIMEOUT = 600.0
STARTS_WITHIN = 15.0
"""How long a gateway that is just starting is waited for."""
LONGEST_LOG = 1024 * 1024

_ATTACHED = "Attached to the gateway that is running on {}."
_ALONE = "No gateway is running on {}, so this chat runs its own until you leave."

Talk = Callable[[Control, str], Awaitable[int]]
"""Runs the client on a connection, of which the sentence tells where it leads; returns the exit code."""


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    options = _options(arguments, config)
    os.umask(0o077)  # Whatever we or a library write is ours alone from birth.
    try:
        # A gateway that runs has its secrets already, and this shell may not.
        settings = load_settings(options.config, resolves=False).settings
        _check_channel(settings)
        return asyncio.run(_chat(settings, _client(settings, options), options))
    except (ConfigError, CannotStart) as refusal:
        return complain(refusal, EXIT_CONFIG)
    except GatehouseError as trouble:
        return complain(trouble, EXIT_FAILED)
    except asyncio.CancelledError:
        return EXIT_TERMINATED


def _options(arguments: Sequence[str], config: Path | None) -> argparse.Namespace:
    made = parser("chat", "Talk to the gateway: the one that is running, or else one of this command's own.", config)
    made.add_argument("--once", action="store_true", help="send one message, print the answer and leave")
    made.add_argument(
        "--timeout",
        type=_seconds,
        default=TIMEOUT,
        metavar="SECONDS",
        help=f"how long to wait for an answer when nobody is at the keyboard (default {TIMEOUT:g})",
    )
    made.add_argument("words", nargs="*", metavar="MESSAGE", help="the message for --once; without it, stdin is read")
    options = made.parse_args(arguments)
    if options.words and not options.once:
        made.error("to send a message from the command line, add --once")
    return options


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")
    return seconds


def _check_channel(settings: Settings) -> None:
    if CLIENT not in settings.channels or not settings.channels[CLIENT].enabled:
        raise CannotStart(
            f"channels.{CLIENT} is disabled, so there is nothing to talk to. "
            f"Enable it with: gatehouse config set channels.{CLIENT}.enabled true",
        )


def _client(settings: Settings, options: argparse.Namespace) -> Talk:
    """Load the client by its entry point: the core knows no channel by import."""
    found = entry_points(group="gatehouse.clients", name=CLIENT)
    if not found:
        raise CannotStart("The terminal client is not installed. Install Gatehouse again: pip install gatehouse")
    chat = found[CLIENT].load()

    async def talk(control: Control, where: str) -> int:
        code: int = await chat(
            control.websocket,
            words=options.words,
            once=options.once,
            patience=options.timeout,
            data_dir=settings.gateway.data_dir,
            where=where,
        )
        return code

    return talk


async def _chat(settings: Settings, talk: Talk, options: argparse.Namespace) -> int:
    directory = settings.gateway.data_dir
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine always runs in one.
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    if await asyncio.to_thread(is_running, directory):
        return await _attached(directory, talk, _ATTACHED)
    settings = (await asyncio.to_thread(load_settings, options.config)).settings  # Our own needs them.
    prepare_data_dir(directory)
    with _log_file(directory / "chat.log") as file:
        configure(settings.gateway.log_level, LogFormat.JSON, secrets_in(settings), file)
        try:
            return await _with_own_daemon(settings, talk)
        except DataDirTaken as taken:
            await _until_it_listens(directory, taken, min(options.timeout, STARTS_WITHIN))
        return await _attached(directory, talk, _ATTACHED)


async def _until_it_listens(directory: Path, taken: DataDirTaken, patience: float) -> None:
    """Wait for whoever was quicker: a service that is being started, or the chat in the next window."""
    with suppress(TimeoutError):
        async with asyncio.timeout(patience):
            while not await asyncio.to_thread(is_running, directory):  # noqa: ASYNC110 - it is another process's
                await asyncio.sleep(0.1)
            return
    raise taken


async def _attached(directory: Path, talk: Talk, where: str) -> int:
    async with Control(directory) as control:
        return await talk(control, where.format(directory))


async def _with_own_daemon(settings: Settings, talk: Talk) -> int:
    from gateway.daemon import opened  # noqa: PLC0415 - a chat that attaches does not pay for the whole gateway.

    directory = settings.gateway.data_dir
    async with opened(_alone(settings), listen=False) as daemon:
        try:
            return await _beside(daemon, lambda: _attached(directory, talk, _ALONE))
        except Exception:  # Whatever broke, the person gets a sentence, and the log the rest.
            log.exception("chat_crashed")
            return complain(f"Something went wrong inside Gatehouse; {directory / 'chat.log'} says what.", EXIT_FAILED)


async def _beside(daemon: "Daemon", chat: Callable[[], Awaitable[int]]) -> int:
    """Run `chat` while `daemon` runs, and end both in order; nobody waits for a turn that the chat has given up."""
    code = EXIT_FAILED
    ready = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(daemon.run(ready.set), name="daemon")
        try:
            await ready.wait()
            code = await chat()
        finally:
            daemon.stop()
            if code != 0:
                daemon.stop()
            await asyncio.wait({running})
    return code


def _alone(settings: Settings) -> Settings:
    """Leave out the other channels: a bot should not come and go with a chat in a terminal."""
    channels = {name: channel for name, channel in settings.channels.items() if name == CLIENT}
    return settings.model_copy(update={"channels": channels})


@contextmanager
def _log_file(path: Path) -> Iterator[TextIO]:
    """Open the log for appending, private from birth, and empty it first when it has grown too long."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as trouble:
        raise CannotStart(f"The log {path} cannot be written: {trouble.strerror}. Make it writable.") from trouble
    with open(descriptor, "a", encoding="utf-8", errors="replace", buffering=1) as file:  # noqa: PTH123 - a descriptor has no Path.
        if os.fstat(descriptor).st_size > LONGEST_LOG:
            os.ftruncate(descriptor, 0)
        yield file
