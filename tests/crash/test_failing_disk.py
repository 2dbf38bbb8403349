"""The whole daemon on a disk whose syncs fail or are slow."""

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
from tests.crash.daemon_spec import CHANNEL
from tests.crash.daemons import daemons
from tests.crash.harness import CrashHarness, open_harness
from tests.crash.scenarios import messages
from tests.daemon_process import DaemonProcess, by_shell, gatehouse, write_config
from tests.polling import until

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")

SLOW = 3.0
"""Seconds that a slow disk takes for a sync of a transcript."""
SLOW_COMMIT = 0.5
"""Seconds that a slow disk takes for a sync of the spool. A message needs several."""


def failing(file: Path, fault: str) -> tuple[str, ...]:
    """Return a command that runs another one and injects `fault` into the syncs of `file`."""
    syncs = ("-e", "trace=fsync,fdatasync", "-e", f"inject=fsync,fdatasync:{fault}")
    return ("strace", "-D", "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-P", str(file), *syncs)


def transcript(data: Path, chat: str) -> Path:
    return data / "sessions" / "transcripts" / file_name(f"agent:main:{CHANNEL}:direct:{chat}")


async def finish_on_a_sound_disk(harness: CrashHarness) -> None:
    async with daemons() as sound:
        harness.daemons = sound
        await harness.finish()


async def test_a_failed_sync_of_the_spool_ends_the_daemon_and_the_next_one_continues(tmp_path: Path) -> None:
    """After a failed sync, only a new start can find out whether the last commit is on the disk."""
    spool = tmp_path / "data" / "spool.db-wal"
    async with open_harness(tmp_path, *failing(spool, "error=EIO:when=12"), data=tmp_path / "data") as harness:
        harness.platform.write(*messages(*(f"chat{number % 3}:" for number in range(12))))
        pid = await harness.start()
        async with asyncio.timeout(60):
            assert await harness.daemons.ended(pid) > 0
        assert harness.platform.unsettled()
        harness.deaths += 1
        await finish_on_a_sound_disk(harness)
    assert "spool_write_failed" in harness.spec.log.read_text()


async def test_a_transcript_is_rewritten_after_a_failed_sync(tmp_path: Path) -> None:
    """A later sync may succeed although the data of the failed one is lost."""
    data = tmp_path / "data"
    ada = transcript(data, "ada")
    async with open_harness(tmp_path, *failing(ada, "error=EIO:when=1"), data=data, flush_interval=3600.0) as harness:
        harness.platform.write(*messages("ada:tool", "bob:", "ada:"))
        pid = await harness.start()
        await harness.platform.until_settled()
        await until(ada.exists)
        first = ada.stat().st_ino
        async with asyncio.timeout(60):
            await harness.daemons.stop(pid, signal.SIGTERM)
        assert ada.stat().st_ino != first
        await finish_on_a_sound_disk(harness)
    assert "flush_failed" in harness.spec.log.read_text()


async def test_a_slow_transcript_delays_no_answers(tmp_path: Path) -> None:
    data = tmp_path / "data"
    slow = failing(transcript(data, "ada"), f"delay_enter={SLOW * 1e6:.0f}")
    async with open_harness(tmp_path, *slow, data=data, flush_interval=0.1) as harness:
        harness.platform.write(*messages("ada:tool"))
        pid = await harness.start()
        await harness.platform.until_settled()
        began = monotonic()
        harness.platform.write(*messages("ada:tool", "bob:", "bob:/status", "ada:")[1:])
        await harness.platform.until_settled()
        assert monotonic() - began < SLOW
        await harness.stop(pid)
        harness.check()


def test_a_slow_spool_keeps_the_event_loop_free_and_loses_nothing(tmp_path: Path) -> None:
    write_config(tmp_path)
    slow = failing(tmp_path / "data" / "spool.db-wal", f"delay_enter={SLOW_COMMIT * 1e6:.0f}")
    with DaemonProcess(tmp_path, start=by_shell(*slow)) as daemon, ThreadPoolExecutor(max_workers=1) as pool:
        url = f"{daemon.ready().url}/healthz"
        began = monotonic()
        chat = pool.submit(gatehouse, "chat", "--once", "hello", home=tmp_path)
        waits = [response_time(url)]
        while not chat.done():
            waits.append(response_time(url))
        assert "Hello!" in chat.result().stdout
        assert monotonic() - began > SLOW_COMMIT
    assert median(waits) < SLOW_COMMIT / 2


def response_time(url: str) -> float:
    asked = monotonic()
    with urlopen(url, timeout=60) as answer:  # noqa: S310 - loopback
        answer.read()
    return monotonic() - asked
