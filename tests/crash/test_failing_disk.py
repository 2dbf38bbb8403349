"""A disk that cannot make durable what it was given, or takes its time for it, under the whole daemon."""

import asyncio
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import monotonic
from urllib.request import urlopen

import pytest

from gateway.sessions.keys import file_name
from tests.crash.daemons import daemons
from tests.crash.order import CHANNEL
from tests.crash.scenarios import said
from tests.crash.stage import Stage, staged
from tests.running import Running, by_shell, gatehouse, write_config

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")

SLOW = 3.0
"""Seconds that a slow disk takes for one sync."""
SLOW_COMMIT = 0.5
"""The same, where several of them stand on the way of a message."""


def failing(file: Path, fault: str) -> tuple[str, ...]:
    """Return the command that runs another with syncs of `file` as `fault` has them."""
    syncs = ("-e", "trace=fsync,fdatasync", "-e", f"inject=fsync,fdatasync:{fault}")
    return ("strace", "-D", "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-P", str(file), *syncs)


def transcript(data: Path, chat: str) -> Path:
    return data / "sessions" / "transcripts" / file_name(f"agent:main:{CHANNEL}:direct:{chat}")


async def finish_on_a_sound_disk(stage: Stage) -> None:
    async with daemons() as sound:
        stage.daemons = sound
        await stage.finish()


async def test_a_spool_that_could_not_be_synced_ends_the_daemon_and_the_next_one_goes_on(tmp_path: Path) -> None:
    """Whether the last commit is on the disk, only the disk can tell: nothing is said of it until a new start."""
    spool = tmp_path / "data" / "spool.db-wal"
    async with staged(tmp_path, *failing(spool, "error=EIO:when=12"), data=tmp_path / "data") as stage:
        stage.far.write(*said(*(f"chat{number % 3}:" for number in range(12))))
        pid = await stage.start()
        async with asyncio.timeout(60):
            assert await stage.daemons.ended(pid) > 0
        assert stage.far.unsettled()
        stage.deaths += 1
        await finish_on_a_sound_disk(stage)
    assert "spool_write_failed" in stage.order.log.read_text()


async def test_a_transcript_that_could_not_be_synced_is_written_anew(tmp_path: Path) -> None:
    """A later sync that succeeds would say nothing about what the failed one has lost."""
    data = tmp_path / "data"
    ada = transcript(data, "ada")
    async with staged(tmp_path, *failing(ada, "error=EIO:when=1"), data=data, flush_interval=3600.0) as stage:
        stage.far.write(*said("ada:tool", "bob:", "ada:"))
        pid = await stage.start()
        await stage.far.until_settled()
        first = ada.stat().st_ino
        async with asyncio.timeout(60):
            await stage.daemons.stop(pid, signal.SIGTERM)
        assert ada.stat().st_ino != first
        await finish_on_a_sound_disk(stage)
    assert "flush_failed" in stage.order.log.read_text()


async def test_a_slow_transcript_holds_nobody_up(tmp_path: Path) -> None:
    data = tmp_path / "data"
    slow = failing(transcript(data, "ada"), f"delay_enter={SLOW * 1e6:.0f}")
    async with staged(tmp_path, *slow, data=data, flush_interval=0.1) as stage:
        stage.far.write(*said("ada:tool"))
        pid = await stage.start()
        await stage.far.until_settled()
        began = monotonic()
        stage.far.write(*said("ada:tool", "bob:", "bob:/status", "ada:")[1:])
        await stage.far.until_settled()
        assert monotonic() - began < SLOW
        await stage.stop(pid)
        stage.check()


def test_a_slow_spool_keeps_the_daemon_answering_and_loses_nothing(tmp_path: Path) -> None:
    write_config(tmp_path)
    slow = failing(tmp_path / "data" / "spool.db-wal", f"delay_enter={SLOW_COMMIT * 1e6:.0f}")
    with Running(tmp_path, start=by_shell(*slow)) as daemon, ThreadPoolExecutor(max_workers=1) as pool:
        url = f"{daemon.ready().url}/healthz"
        began = monotonic()
        chat = pool.submit(gatehouse, "chat", "--once", "hello", home=tmp_path)
        waits = [waited_for(url)]
        while not chat.done():
            waits.append(waited_for(url))
        assert "Hello!" in chat.result().stdout
        assert monotonic() - began > SLOW_COMMIT
    assert median(waits) < SLOW_COMMIT / 2


def waited_for(url: str) -> float:
    asked = monotonic()
    with urlopen(url, timeout=60) as answer:  # noqa: S310 - loopback
        answer.read()
    return monotonic() - asked
