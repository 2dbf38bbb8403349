"""The writer as a process of its own: killed at random moments, and on a disk that fails."""

import asyncio
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.spool import Spool

ROOT = Path(__file__).parents[2]


def storm(data_dir: Path, first: int, count: int, *before: str) -> subprocess.Popen[str]:
    command = [*before, sys.executable, "-m", "tests.spool.storm", str(data_dir), str(first), str(count)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def heard_until(process: subprocess.Popen[str], limit: int) -> list[str]:
    """Kill the process once it has said `limit` lines; return all that it has said."""
    assert process.stdout is not None
    said = [process.stdout.readline().strip() for _ in range(limit)]
    process.kill()
    said += process.stdout.read().splitlines()
    process.stdout.close()
    process.wait()
    return said


def numbers(said: list[str]) -> set[int]:
    return {int(word.split()[1]) for word in said if word.startswith("stored ") and word.split()[1].isdigit()}


async def check(data_dir: Path, acknowledged: set[int]) -> int:
    """Everything acknowledged is there once, and everything that is there is there whole."""
    async with await Spool.open(data_dir) as spool:
        found = await spool.recover()
        turns = [int(row.turn.removeprefix("t")) for row in found.inbox]
        keys = [int(row.key.removeprefix("k")) for row in found.outbox]
        noted = {seq async for _, entries in spool.unflushed_entries() for seq, _ in entries}
        seen = (await spool.stats()).seen
    assert spool.damaged_file is None
    assert acknowledged <= set(turns)
    assert turns == keys
    assert len(set(turns)) == len(turns) == seen
    assert noted == set(turns)
    return len(turns)


async def test_acknowledged_commits_survive_repeated_kills(tmp_path: Path) -> None:
    dice = random.Random(7)  # noqa: S311 - not for secrets
    acknowledged: set[int] = set()
    async with asyncio.timeout(120):
        for round_ in range(8):
            process = storm(tmp_path, round_ * 100_000, 100_000)
            said = await asyncio.to_thread(heard_until, process, dice.randrange(2, 2_500))
            acknowledged |= numbers(said)
            await check(tmp_path, acknowledged)
    assert len(acknowledged) > 100


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
async def test_the_creation_can_be_killed_at_any_write(tmp_path: Path) -> None:
    async with asyncio.timeout(120):
        for step in (1, 4, 8, 13, 18, 25, 40):
            data_dir = tmp_path / str(step)
            data_dir.mkdir()
            files = (word for end in ("", "-wal", "-journal") for word in ("-P", str(data_dir / f"spool.db{end}")))
            fault = f"inject=pwrite64,fdatasync,unlink,openat:signal=KILL:when={step}"
            process = storm(data_dir, 0, 1, "strace", "-f", "-qq", "-o", "/dev/null", *files, "-e", fault)
            output, _ = await asyncio.to_thread(process.communicate)
            await check(data_dir, numbers(output.splitlines()))


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize(
    ("fault", "file"),
    [
        ("fsync,fdatasync:error=EIO:when=40", "spool.db-wal"),
        ("pwrite64:error=EIO:when=200", "spool.db-wal"),
        ("fsync,fdatasync:error=EIO:when=1", "spool.db"),
    ],
)
async def test_nothing_is_written_after_a_failing_disk(tmp_path: Path, fault: str, file: str) -> None:
    """Once a sync has failed, a later one that succeeds says nothing about what was lost."""
    async with await Spool.open(tmp_path):
        pass  # Making the file needs syncs too.
    tracing = ("strace", "-f", "-qq", "-o", "/dev/null", "-P", str(tmp_path / file), "-e", f"inject={fault}")
    process = storm(tmp_path, 0, 4_000, *tracing)
    async with asyncio.timeout(120):
        output, _ = await asyncio.to_thread(process.communicate)
    said = output.splitlines()
    assert "broken" in said
    first = said.index("broken")
    assert set(said[first:]) == {"broken"}, "nothing is acknowledged afterwards"
    assert process.returncode == 1
    assert numbers(said)
    await check(tmp_path, numbers(said))


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
async def test_a_full_disk_loses_only_refused_commits(tmp_path: Path) -> None:
    """Every fiftieth write finds no room, in the middle of a batch."""
    tracing = (
        *("strace", "-f", "-qq", "-o", "/dev/null", "-P", str(tmp_path / "spool.db-wal")),
        *("-e", "inject=pwrite64:error=ENOSPC:when=100..900+50"),
    )
    process = storm(tmp_path, 0, 1_000, *tracing)
    async with asyncio.timeout(120):
        output, _ = await asyncio.to_thread(process.communicate)
    said = output.splitlines()
    assert said.count("full") + len(numbers(said)) == 1_000
    assert "full" in said
    assert process.returncode == 0
    assert await check(tmp_path, numbers(said)) == len(numbers(said))
