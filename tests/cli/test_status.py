import contextlib
import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.cli.status import render
from gateway.observability.status import ChannelReport, FlushReport, ModelReport, SpoolReport, StatusReport, TurnReport
from tests.channels.terminal.pseudo_terminal import in_terminal
from tests.daemon_process import COMMAND, environment, gatehouse, running, write_config

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TELEGRAM = ChannelReport(
    name="telegram",
    account="default",
    state="up",
    reason="",
    since=NOW - timedelta(hours=3),
    last_event_at=NOW - timedelta(minutes=2),
    last_error="Bad Gateway",
    last_error_at=NOW - timedelta(hours=3),
)
WELL = StatusReport(
    version="1.2.3",
    sentence="",
    state="ready",
    ready=True,
    taken_at=NOW,
    started_at=NOW - timedelta(days=3),
    uptime_seconds=3 * 86_400,
    troubles=(),
    warnings=(),
    channels=(TELEGRAM,),
    turns_running=1,
    turns_awaiting_approval=0,
    turns=(TurnReport(channel="telegram", agent="main", session="agent:main:telegram:direct:7", seconds=72.0),),
    messages_waiting=3,
    replies_waiting=1,
    sessions=12,
    scopes=5,
    spool=SpoolReport(bytes=1_200_000, messages={"received": 3, "running": 1, "dead": 1}, replies={"pending": 2}),
    flush=FlushReport(age_seconds=12.0, took_seconds=0.003, failures=0),
    memory_bytes=61_000_000,
    open_files=30,
    disk_free_bytes=70_000_000_000,
    models=(ModelReport(name="openai/small", requests=40, failed=2, mean_seconds=1.25, most_within_seconds=2.5),),
)


def test_status_shows_channels_work_storage_models_and_process() -> None:
    assert render(WELL) == [
        "Gatehouse 1.2.3 is ready, up 3 d",
        "",
        "Channels",
        "  telegram  up        last event 2 min ago; last error 3 h ago: Bad Gateway",
        "",
        "Work",
        "  1 turn running, 3 messages waiting, 1 reply to deliver",
        "     1 min  telegram  main  agent:main:telegram:direct:7",
        "",
        "Storage",
        "  12 sessions in 5 scopes",
        "  spool 1.2 MB: 4 to answer, 2 to deliver, 1 failed (`gatehouse spool` lists them)",
        "  last flush 12 s ago (took 3.0 ms)",
        "  70 GB free on the disk",
        "",
        "Models",
        "  openai/small: 40 requests, 2 failed, 1.2 s on average, 95 % within 2.5 s",
        "",
        "Process",
        "  61 MB of memory, 30 files open",
    ]


@pytest.mark.parametrize(("failures", "said"), [(0, "  not flushed yet"), (2, "  not flushed yet, 2 failures")])
def test_status_before_the_first_flush(failures: int, said: str) -> None:
    flush = FlushReport(age_seconds=12.0, took_seconds=None, failures=failures)
    assert said in render(msgspec.structs.replace(WELL, flush=flush))


def test_problems_are_shown_first() -> None:
    lost = msgspec.structs.replace(TELEGRAM, state="down", reason="the platform\nis \x1b[31maway", last_event_at=None)
    ill = msgspec.structs.replace(
        WELL, state="not ready", ready=False, channels=(lost,), troubles=("The disk is full.",), spool=None
    )
    shown = render(ill)
    assert shown[:2] == ["Gatehouse 1.2.3 is not ready, up 3 d", "  ! The disk is full."]
    assert "  telegram  down      for 3 h: the platform is [31maway; no event yet" in shown
    assert "  the spool doesn't respond" in shown


def test_status_once_and_watched_until_the_daemon_has_stopped(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        gatehouse("chat", "--once", "hello", home=tmp_path)
        shown = gatehouse("status", home=tmp_path)
        assert shown.returncode == 0
        assert "1 session in 1 scope" in shown.stdout
        assert "terminal  up        last event just now" in shown.stdout
        assert "offline/rules: 1 request," in shown.stdout
        with watching(tmp_path, "--json") as lines:
            assert next(lines)["state"] == "ready"
            assert daemon.stop() == 0
            while "error" not in (line := next(lines)):
                pass
            assert "gatehouse run" in line["error"]


@contextlib.contextmanager
def watching(home: Path, *options: str) -> Iterator[Iterator[dict[str, Any]]]:  # Any: as JSON has it.
    command = [str(COMMAND), "status", "--watch", "--interval", "0.2", *options]
    with subprocess.Popen(command, cwd=home, env=environment(home), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield map(json.loads, process.stdout)
        finally:
            process.terminate()


def test_live_screen_restores_the_terminal(tmp_path: Path) -> None:
    write_config(tmp_path)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [COMMAND, "status", "--watch"], cwd=tmp_path, env=environment(tmp_path), stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        shown = b""
        while b"No gateway is running" not in shown:
            shown += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # How a terminal tells that nobody has it open any more.
            while more := os.read(ours, 4096):
                shown += more
    os.close(ours)
    assert shown.startswith(b"\x1b[?1049h")
    assert shown.rstrip().endswith(b"\x1b[?1049l")
    assert b"Traceback" not in shown


async def test_q_quits_the_live_screen(tmp_path: Path) -> None:
    write_config(tmp_path)
    async with in_terminal("status", "--watch", "--interval", "3600", home=tmp_path) as terminal:
        await terminal.shows("(q quits)")
        await terminal.shows("No gateway is running")
        terminal.type("xq")
        assert await terminal.ended() == 0
        await terminal.shows("\x1b[?1049l")
    assert "xq" not in terminal.screen


@pytest.mark.parametrize("wrong", ["0", "-1", "soon", "inf", "nan"])
def test_an_impossible_interval_is_refused(tmp_path: Path, wrong: str) -> None:
    write_config(tmp_path)
    refused = gatehouse("status", "--watch", f"--interval={wrong}", home=tmp_path)
    assert refused.returncode == 2
    assert "is not a number of seconds between 0.2 and 3600" in refused.stderr
