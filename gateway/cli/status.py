"""`gatehouse status`: shows the state of the running daemon, once or as a live screen."""

import argparse
import asyncio
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import NoReturn

import msgspec

from gateway.admin.client import Control, NotRunning
from gateway.cli.common import EXIT_FAILED, EXIT_OK, command_parser, load_data_dir
from gateway.cli.remote import ask_daemon
from gateway.errors import Refused
from gateway.files.identify import in_bytes
from gateway.observability.status import ChannelFacts, Facts, SpoolFacts
from gateway.text import excerpt, printable
from gateway.text.clean import ago, count, duration

_MIN_INTERVAL = 0.2
_MAX_INTERVAL = 3600.0
_TURNS_SHOWN = 10
_REASON_LENGTH = 100
# Terminal control sequences (ECMA-48, and xterm's alternate screen).
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_ENTER_SCREEN, _LEAVE_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    description = "Show the state of the running gateway. Exits with 1 if it is not ready."
    parser = command_parser("status", description, config)
    parser.add_argument("--json", action="store_true", help="print JSON; with --watch, one line for each update")
    parser.add_argument("--watch", action="store_true", help="update the screen until Ctrl-C")
    parser.add_argument(
        "--interval", type=_seconds, default=2.0, metavar="SECONDS", help="seconds between updates (default 2)"
    )
    options = parser.parse_args(arguments)
    if options.watch:
        _watch(load_data_dir(options.config), options.interval, as_json=options.json)

    async def print_status(control: Control) -> int:
        if options.json:
            status = await control.get("/status")
            print(json.dumps(status, indent=2))
            return EXIT_OK if status["ready"] else EXIT_FAILED
        facts = await _read_facts(control)
        print("\n".join(render(facts)))
        return EXIT_OK if facts.ready else EXIT_FAILED

    return ask_daemon(options.config, print_status)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not _MIN_INTERVAL <= seconds <= _MAX_INTERVAL:
        limits = f"between {_MIN_INTERVAL:g} and {_MAX_INTERVAL:g}"
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds {limits}")
    return seconds


async def _read_facts(control: Control) -> Facts:
    try:
        return msgspec.convert(await control.get("/status"), Facts)
    except msgspec.ValidationError as error:
        raise Refused("Can't read the daemon's answer. Is it the same version as this command?") from error


def _watch(directory: Path, interval: float, *, as_json: bool) -> NoReturn:
    """Show the status until interrupted: on the terminal's alternate screen, or as text if stdout is not a terminal."""
    is_screen = sys.stdout.isatty() and not as_json

    async def update() -> NoReturn:
        while True:
            try:
                async with Control(directory) as control:
                    if as_json:
                        lines = [json.dumps(await control.get("/status"))]
                    else:
                        lines = render(await _read_facts(control))
            except (NotRunning, Refused) as error:
                lines = [json.dumps({"error": str(error)}) if as_json else str(error)]
            if is_screen:
                _draw(lines)
            else:
                print("\n".join(lines if as_json else [*lines, ""]), flush=True)
            await asyncio.sleep(interval)

    if is_screen:
        sys.stdout.write(_ENTER_SCREEN)
    try:
        asyncio.run(update())
    finally:
        if is_screen:
            sys.stdout.write(_LEAVE_SCREEN)
            sys.stdout.flush()


def _draw(lines: Sequence[str]) -> None:
    """Overwrite the screen instead of clearing it, so that it does not flicker."""
    width, height = shutil.get_terminal_size()
    head = f"{datetime.now().astimezone():%H:%M:%S}  (Ctrl-C to exit)"
    # A line that is too long would wrap, and one line too many would scroll the screen.
    fitting = [line[: width - 1] for line in (head, "", *lines)][: height - 1]
    sys.stdout.write(_HOME + "".join(f"{line}{_CLEAR_LINE}\n" for line in fitting) + _CLEAR_BELOW)
    sys.stdout.flush()


def render(facts: Facts) -> list[str]:
    """Return the status as lines, without control characters."""
    up = duration(timedelta(seconds=facts.uptime_seconds))
    lines = [f"Gatehouse {facts.version} is {facts.state}, up {up}"]
    lines += (f"  ! {sentence}" for sentence in (*facts.troubles, *facts.warnings))
    lines += ("", "Channels", *_channels(facts.channels, facts.taken_at))
    lines += ("", "Work", *_work(facts))
    lines += ("", "Storage", *_storage(facts))
    if facts.models:
        lines += ("", "Models")
    for model in facts.models:
        failed = f", {model.failed} failed" if model.failed else ""
        most = "" if model.most_within_seconds is None else f", 95 % within {model.most_within_seconds:g} s"
        average = f"{model.mean_seconds:.2f} s on average"
        lines.append(f"  {model.name}: {count(model.requests, 'request')}{failed}, {average}{most}")
    lines += ("", "Process", f"  {in_bytes(facts.memory_bytes)} of memory, {count(facts.open_files, 'file')} open")
    return [printable(line) for line in lines]


def _channels(channels: Sequence[ChannelFacts], now: datetime) -> Iterator[str]:
    names = [each.name if each.account == "default" else f"{each.name}:{each.account}" for each in channels]
    width = max(map(len, names), default=0)
    for name, each in zip(names, channels, strict=True):
        event = "no event yet" if each.last_event_at is None else f"last event {ago(each.last_event_at, now)}"
        detail = event
        if each.state != "up" and each.reason:
            detail = f"for {duration(now - each.since)}: {excerpt(each.reason, _REASON_LENGTH)}; {event}"
        elif each.last_error_at is not None:
            last = excerpt(each.last_error, _REASON_LENGTH)
            detail = f"{event}; last error {ago(each.last_error_at, now)}: {last}"
        yield f"  {name:<{width}}  {each.state:<8}  {detail}".rstrip()


def _work(facts: Facts) -> Iterator[str]:
    approvals = f", {facts.turns_awaiting_approval} waiting for approval" if facts.turns_awaiting_approval else ""
    replies = "1 reply" if facts.replies_waiting == 1 else f"{facts.replies_waiting} replies"
    yield (
        f"  {count(facts.turns_running, 'turn')} running{approvals}, "
        f"{count(facts.messages_waiting, 'message')} waiting, {replies} to deliver"
    )
    for turn in facts.turns[:_TURNS_SHOWN]:
        yield f"    {duration(timedelta(seconds=turn.seconds)):>6}  {turn.channel}  {turn.agent}  {turn.session}"
    if len(facts.turns) > _TURNS_SHOWN:
        yield f"    and {len(facts.turns) - _TURNS_SHOWN} more"


def _storage(facts: Facts) -> Iterator[str]:
    yield f"  {count(facts.sessions, 'session')} in {count(facts.scopes, 'scope')}"
    yield "  the spool does not respond" if facts.spool is None else f"  {_spool(facts.spool)}"
    flush = facts.flush
    failed = f", {count(flush.failures, 'failure')}" if flush.failures else ""
    if flush.took_seconds is None:
        yield f"  not flushed yet{failed}"
    else:
        age = duration(timedelta(seconds=flush.age_seconds))
        yield f"  last flush {age} ago (took {flush.took_seconds * 1000:.0f} ms{failed})"
    if facts.disk_free_bytes is not None:
        yield f"  {in_bytes(facts.disk_free_bytes)} free on the disk"


def _spool(spool: SpoolFacts) -> str:
    dead = spool.messages.get("dead", 0) + spool.replies.get("dead", 0)
    failed = f", {dead} failed (`gatehouse spool` lists them)" if dead else ""
    to_answer = sum(spool.messages.values()) - spool.messages.get("dead", 0)
    to_deliver = sum(spool.replies.values()) - spool.replies.get("dead", 0)
    return f"spool {in_bytes(spool.bytes)}: {to_answer} to answer, {to_deliver} to deliver{failed}"
