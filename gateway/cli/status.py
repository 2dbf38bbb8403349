"""`gatehouse status`: shows the state of the running daemon, once or as a live screen."""

import asyncio
import json
import os
import shutil
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from gateway.admin.client import ControlClient, NotRunning
from gateway.cli.common import EXIT_FAILED, EXIT_OK, command_parser, load_data_dir, seconds_between
from gateway.cli.remote import ask_daemon
from gateway.errors import Refused
from gateway.observability.status import ChannelReport, FlushReport, StatusReport
from gateway.text import excerpt, printable
from gateway.text.plain import ago, count, duration, in_bytes, local_time, took

_MIN_INTERVAL = 0.2
_MAX_INTERVAL = 3600.0
_TURNS_SHOWN = 10
_REASON_LENGTH = 100
_ENGINES = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}
# Terminal control sequences (ECMA-48, and xterm's alternate screen).
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_ENTER_SCREEN, _LEAVE_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    description = "Show the state of the running gateway. Exits with 1 if it is not ready."
    parser = command_parser("status", description, config)
    parser.add_argument("--json", action="store_true", help="print JSON; with --watch, one line for each update")
    parser.add_argument("--watch", action="store_true", help="update the screen until you press q")
    parser.add_argument(
        "--interval",
        type=seconds_between(_MIN_INTERVAL, _MAX_INTERVAL),
        default=2.0,
        metavar="SECONDS",
        help="seconds between updates (default 2)",
    )
    options = parser.parse_args(arguments)
    if options.watch:
        return _watch(load_data_dir(options.config), options.interval, as_json=options.json)

    async def print_status(control: ControlClient) -> int:
        if options.json:
            status = await control.get("/status")
            print(json.dumps(status, indent=2))
            return EXIT_OK if status["ready"] else EXIT_FAILED
        report = await _read_report(control)
        print("\n".join(render(report)))
        return EXIT_OK if report.ready else EXIT_FAILED

    return ask_daemon(options.config, print_status)


async def _read_report(control: ControlClient) -> StatusReport:
    try:
        return msgspec.convert(await control.get("/status"), StatusReport, str_keys=True)
    except msgspec.ValidationError as error:
        raise Refused("Can't read the gateway's answer. Is it the same version as this command?") from error


def _watch(directory: Path, interval: float, *, as_json: bool) -> int:
    """Show the status until `q` or Ctrl-C: on the terminal's alternate screen, or as text if stdout is no terminal."""
    is_screen = sys.stdout.isatty() and not as_json

    async def update() -> None:
        quitting = asyncio.Event()
        if is_screen and sys.stdin.isatty():
            keyboard = sys.stdin.fileno()

            def read_keys() -> None:
                keys = os.read(keyboard, 1024)
                if not keys or b"q" in keys.lower():  # None: the terminal was closed.
                    quitting.set()

            asyncio.get_running_loop().add_reader(keyboard, read_keys)
        while not quitting.is_set():
            try:
                async with ControlClient(directory) as control:
                    if as_json:
                        lines = [json.dumps(await control.get("/status"))]
                    else:
                        lines = render(await _read_report(control))
            except (NotRunning, Refused) as error:
                lines = [json.dumps({"error": str(error)}) if as_json else str(error)]
            if is_screen:
                # Overwrite the old screen line by line, since clearing it first would flicker. Cut what does not fit:
                # a line that is too long would wrap, and one line too many would scroll.
                width, height = shutil.get_terminal_size()
                head = f"{local_time(datetime.now(UTC))}  (q quits)"
                fitting = [line[: width - 1] for line in (head, "", *lines)][: height - 1]
                sys.stdout.write(_HOME + "".join(f"{line}{_CLEAR_LINE}\n" for line in fitting) + _CLEAR_BELOW)
                sys.stdout.flush()
            else:
                print("\n".join(lines if as_json else [*lines, ""]), flush=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await quitting.wait()

    with _screen() if is_screen else nullcontext():
        asyncio.run(update())
    return EXIT_OK


@contextmanager
def _screen() -> Iterator[None]:
    """Use the alternate screen. Keys arrive one by one and are not shown; Ctrl-C works as always."""
    before = termios.tcgetattr(sys.stdin) if sys.stdin.isatty() else None
    if before is not None:
        local = before[3] & ~(termios.ECHO | termios.ICANON)
        termios.tcsetattr(sys.stdin, termios.TCSANOW, [*before[:3], local, *before[4:]])
    sys.stdout.write(_ENTER_SCREEN)
    try:
        yield
    finally:
        sys.stdout.write(_LEAVE_SCREEN)
        sys.stdout.flush()
        if before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


def render(report: StatusReport) -> list[str]:
    """Return the status as lines, without control characters."""
    now = report.taken_at
    up = duration(timedelta(seconds=report.uptime_seconds))
    lines = [f"Gatehouse {report.version} is {report.state}, up {up}"]
    lines += (f"  ! {sentence}" for sentence in (*report.troubles, *report.warnings))
    lines += (f"  - {sentence}" for sentence in report.notes)

    lines += ("", "Channels")
    names = [each.name if each.account == "default" else f"{each.name}:{each.account}" for each in report.channels]
    width = max(map(len, names), default=0)
    for name, channel in zip(names, report.channels, strict=True):
        lines.append(f"  {name:<{width}}  {channel.state:<8}  {_describe_channel(channel, now)}".rstrip())

    lines += ("", "Work")
    approvals = f", {report.turns_awaiting_approval} waiting for approval" if report.turns_awaiting_approval else ""
    replies = "1 reply" if report.replies_waiting == 1 else f"{report.replies_waiting} replies"
    turns, messages = count(report.turns_running, "turn"), count(report.messages_waiting, "message")
    lines.append(f"  {turns} running{approvals}, {messages} waiting, {replies} to deliver")
    for turn in report.turns[:_TURNS_SHOWN]:
        running = duration(timedelta(seconds=turn.seconds))
        lines.append(f"    {running:>6}  {turn.channel}  {turn.agent}  {turn.session}")
    if len(report.turns) > _TURNS_SHOWN:
        lines.append(f"    and {len(report.turns) - _TURNS_SHOWN} more")

    if any(report.schedules.values()):
        active, paused, failing = (report.schedules.get(state, 0) for state in ("active", "paused", "failing"))
        fails = f", {failing} failing (`gatehouse schedules` lists them)" if failing else ""
        lines.append(f"  {count(active, 'schedule')}{fails}{f', {paused} paused' if paused else ''}")
    lines += ("", "Storage", f"  {count(report.sessions, 'session')} in {count(report.scopes, 'scope')}")
    storage = report.storage
    is_database = storage is not None and bool(storage.database)
    if storage is not None and is_database:
        lines.append(f"  {_ENGINES.get(storage.engine, storage.engine)}: {storage.database}, schema {storage.schema}")
    if (archiving := report.archiving) is not None and (archiving.waiting or archiving.failures):
        failures = f", {count(archiving.failures, 'failure')} in a row" if archiving.failures else ""
        budget = ", today's budget is used up" if archiving.is_over_budget else ""
        lines.append(f"  {count(archiving.waiting, 'session')} to archive into memory{failures}{budget}")
    if (spool := report.spool) is None:
        lines.append(f"  the {'database' if is_database else 'spool'} doesn't respond")
    else:
        dead_messages, dead_replies = spool.messages.get("dead", 0), spool.replies.get("dead", 0)
        to_answer = sum(spool.messages.values()) - dead_messages
        to_deliver = sum(spool.replies.values()) - dead_replies
        dead = dead_messages + dead_replies
        failed = f", {dead} failed (`gatehouse spool` lists them)" if dead else ""
        name = "database" if is_database else "spool"
        lines.append(f"  {name} {in_bytes(spool.bytes)}: {to_answer} to answer, {to_deliver} to deliver{failed}")
    if storage is not None and is_database:
        average = took(storage.commit_seconds / max(1, report.spool_transactions))
        lines.append(f"  a commit takes {average} on average, {storage.slow_commits} were slow")
    else:
        lines.append(_describe_flush(report.flush))
    if report.disk_free_bytes is not None:
        lines.append(f"  {in_bytes(report.disk_free_bytes)} free on the disk")

    if report.models:
        lines += ("", "Models")
    for model in report.models:
        failed = f", {model.failed} failed" if model.failed else ""
        most = "" if model.most_within_seconds is None else f", 95 % within {took(model.most_within_seconds)}"
        average = f"{took(model.mean_seconds)} on average"
        lines.append(f"  {model.name}: {count(model.requests, 'request')}{failed}, {average}{most}")
    lines += ("", "Process", f"  {in_bytes(report.memory_bytes)} of memory, {count(report.open_files, 'file')} open")
    return [printable(line) for line in lines]


def _describe_flush(flush: FlushReport) -> str:
    failures = f", {count(flush.failures, 'failure')}" if flush.failures else ""
    if flush.took_seconds is None:
        return f"  not flushed yet{failures}"
    age = duration(timedelta(seconds=flush.age_seconds))
    return f"  last flush {age} ago (took {took(flush.took_seconds)}{failures})"


def _describe_channel(channel: ChannelReport, now: datetime) -> str:
    event = "no event yet" if channel.last_event_at is None else f"last event {ago(channel.last_event_at, now)}"
    if channel.state != "up" and channel.reason:
        return f"for {duration(now - channel.since)}: {excerpt(channel.reason, _REASON_LENGTH)}; {event}"
    if channel.last_error_at is None:
        return event
    return f"{event}; last error {ago(channel.last_error_at, now)}: {excerpt(channel.last_error, _REASON_LENGTH)}"
