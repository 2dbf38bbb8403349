"""`gatehouse chat`: a chat in the terminal, with the running daemon or with a daemon that this command starts."""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path

import structlog

from config import LogFormat, Settings
from gateway.admin.client import ControlClient, is_running
from gateway.cli.common import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_TERMINATED,
    command_parser,
    fail,
    load_settings,
    positive_seconds,
    print_error,
)
from gateway.cli.environment import trim_environment
from gateway.data_dir import DataDirLock, DataDirTaken, prepare_data_dir, unusable
from gateway.distribution import Installation
from gateway.errors import CannotStart, GatehouseError, Refused
from gateway.observability.logging import configure, secrets_in
from gateway.private_files import open_private

log = structlog.get_logger()

CLIENT = "terminal"
"""The name of the client's entry point, and of the channel that it connects to."""
ANSWER_TIMEOUT = 600.0
START_TIMEOUT = 15.0
"""How long to wait for a gateway that is starting."""
START_POLL_INTERVAL = 0.1
MAX_LOG_BYTES = 1024 * 1024

_ATTACHED = "Connected to the gateway running on {}."
_ALONE = "No gateway is running on {}, so this chat starts its own until you leave."

Talk = Callable[[ControlClient, str], Awaitable[int]]
"""Runs the client on a connection, whose description it shows. Returns the exit code."""


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    description = "Chat with the running gateway. If none is running, this command starts its own."
    parser = command_parser("chat", description, config)
    parser.add_argument("--once", action="store_true", help="send one message, print the answer and exit")
    parser.add_argument(
        "--timeout",
        type=positive_seconds,
        default=ANSWER_TIMEOUT,
        metavar="SECONDS",
        help=f"how long a script waits for an answer (default {ANSWER_TIMEOUT:g})",
    )
    parser.add_argument("--model", metavar="NAME", help="choose the model of the session, like /model")
    parser.add_argument(
        "--file",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="send a file with the first message; can be repeated",
    )
    parser.add_argument("words", nargs="*", metavar="MESSAGE", help="message for --once; the text of a pipe follows it")
    options = parser.parse_args(arguments)
    if options.words and not options.once:
        parser.error("to send a message from the command line, add --once")
    os.umask(0o077)  # All files that we or a library create are private.
    # A running gateway has its own secrets, and this shell may not have them.
    settings = load_settings(options.config, resolves=False).settings
    if CLIENT not in settings.channels or not settings.channels[CLIENT].enabled:
        raise CannotStart(
            f"channels.{CLIENT} is disabled, so `gatehouse chat` can't connect. "
            f"Enable it with: gatehouse config set channels.{CLIENT}.enabled true",
        )
    # The client is loaded by its entry point, because the core imports no channel.
    found = entry_points(group="gatehouse.clients", name=CLIENT)
    if not found:
        raise CannotStart(
            f"The terminal client is missing. Reinstall Gatehouse: {Installation.present().reinstall_command()}"
        )
    chat = found[CLIENT].load()

    async def talk(control: ControlClient, where: str) -> int:
        code: int = await chat(
            control.websocket,
            upload=control.upload,
            words=options.words,
            once=options.once,
            model=options.model,
            files=options.file,
            patience=options.timeout,
            data_dir=settings.gateway.data_dir,
            where=where,
        )
        return code

    try:
        return asyncio.run(_chat(settings, talk, options))
    except CannotStart:
        raise
    except GatehouseError as error:
        return fail(error, EXIT_FAILED)
    except asyncio.CancelledError:
        return EXIT_TERMINATED


async def _chat(settings: Settings, talk: Talk, options: argparse.Namespace) -> int:
    directory = settings.gateway.data_dir
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine always runs in a task.
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    if await asyncio.to_thread(is_running, directory):
        return await _attach(directory, talk, _ATTACHED)
    loaded = await asyncio.to_thread(load_settings, options.config)  # Our own daemon needs the secrets.
    settings = loaded.settings
    trim_environment(settings.gateway.keep_environment)
    if sys.stderr.isatty():  # In a script, it would look like an error.
        print_error(f"Configuration: {loaded.source}")
    prepare_data_dir(directory)
    path = directory / "chat.log"
    try:
        descriptor = open_private(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    except OSError as error:
        raise unusable(path, error) from error
    with open(descriptor, "a", encoding="utf-8", errors="replace", buffering=1) as file:  # noqa: ASYNC230, PTH123 - a descriptor is open already.
        if os.fstat(descriptor).st_size > MAX_LOG_BYTES:
            os.ftruncate(descriptor, 0)
        configure(settings.gateway.log_level, LogFormat.JSON, secrets_in(settings), file)
        log.info("config_loaded", file=loaded.source)
        try:
            return await _run_own_daemon(settings, talk)
        except DataDirTaken as taken:
            # A service or another chat is starting at the same time, and has the lock. Wait until it listens.
            try:
                async with asyncio.timeout(min(options.timeout, START_TIMEOUT)):
                    while not await asyncio.to_thread(is_running, directory):  # noqa: ASYNC110 - it is another process.
                        await asyncio.sleep(START_POLL_INTERVAL)
            except TimeoutError:
                raise taken from None
        return await _attach(directory, talk, _ATTACHED)


async def _attach(directory: Path, talk: Talk, where: str) -> int:
    async with ControlClient(directory) as control:
        return await talk(control, where.format(directory))


async def _run_own_daemon(settings: Settings, talk: Talk) -> int:
    """Run a daemon for the time of the chat, and stop it in order. Raises `Refused` on a machine of a cluster."""
    from gateway.build import open_daemon  # noqa: PLC0415 - a chat that attaches does not need the whole gateway.

    directory = settings.gateway.data_dir
    if settings.cluster.enabled:
        with DataDirLock(directory):  # It raises if the node is starting. Then the chat waits for it.
            raise Refused(
                "No node runs on this machine, and a chat runs none: it would take conversations from the other nodes, "
                "without their channels. Start the node with `gatehouse run`, or chat on another machine."
            )
    # Only the terminal channel runs: a bot should not come and go with a chat in a terminal.
    channels = {name: channel for name, channel in settings.channels.items() if name == CLIENT}
    settings = settings.model_copy(update={"channels": channels})
    async with open_daemon(settings, listen=False) as daemon:
        code = EXIT_FAILED
        ready = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                running = group.create_task(daemon.run(ready.set), name="daemon")
                try:
                    await ready.wait()
                    code = await _attach(directory, talk, _ALONE)
                finally:
                    daemon.stop()
                    if code != EXIT_OK:
                        daemon.stop()  # The second stop skips draining: the person has given up on the running turn.
                    await asyncio.wait({running})
        except Exception:  # People get a sentence, and the log gets the traceback.
            log.exception("chat_crashed")
            return fail(f"Internal error. See {directory / 'chat.log'} for details.", EXIT_FAILED)
        return code
