"""Measures commits to the spool, one at a time and in parallel, compared with a write and fsync on the same disk."""

import asyncio
import os
import statistics
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from bench.table import Row
from gateway.contract import Address, Inbound, PeerKind, Sender
from gateway.spool import AddToInbox, MarkSeen, Operation, Spool

ALONE = 1_000
TASKS = 50
EACH = 400
LIMIT_MS = 0.7
LIMIT_RATE = 5_000
NOW = datetime(2026, 3, 1, tzinfo=UTC)


def rows() -> Iterator[Row]:
    # In the source folder, because /tmp is often not on a disk.
    with TemporaryDirectory(dir=Path(__file__).parent, prefix=".spool-") as directory:
        bare = statistics.median(_bare_ms(Path(directory) / "bare"))
        alone, rate, together = asyncio.run(_measure(Path(directory)))
    p50, p99 = statistics.median(alone), statistics.quantiles(alone, n=100)[98]
    baseline = f"write + fsync: {bare:.2f} ms"
    yield Row(
        what="spool: one message at a time, p50 / p99",
        measured=f"{p50:.2f} / {p99:.2f} ms, {p50 / bare:.1f}x",
        baseline=baseline,
        target=f"p50 < {LIMIT_MS} ms",
        is_met=p50 < LIMIT_MS,
    )
    yield Row(
        what=f"spool: messages of {TASKS} parallel tasks",
        measured=f"{rate:,.0f}/s, {together:.0f} per fsync",
        baseline=f"{baseline}, {1000 / bare:,.0f}/s",
        target=f"> {LIMIT_RATE:,}/s",
        is_met=rate > LIMIT_RATE,
    )


async def _measure(directory: Path) -> tuple[list[float], float, float]:
    """Return the milliseconds of each single commit, then the parallel commits per second and per transaction."""
    async with await Spool.open(directory) as spool:
        await _commit_messages(spool, "warm", 100)
        alone = await _commit_messages(spool, "alone", ALONE)
        before, started = spool.transactions, perf_counter()
        async with asyncio.TaskGroup() as group:
            for lane in range(TASKS):
                group.create_task(_commit_messages(spool, f"lane{lane}", EACH), name=f"lane:{lane}")
        took = perf_counter() - started
        stored = len((await spool.recover()).inbox)
    assert stored == 100 + ALONE + TASKS * EACH
    return alone, TASKS * EACH / took, TASKS * EACH / (spool.transactions - before)


async def _commit_messages(spool: Spool, name: str, times: int) -> list[float]:
    took = []
    for number in range(times):
        operations = _message(f"{name}-{number}")
        started = perf_counter()
        await spool.commit(*operations)
        took.append((perf_counter() - started) * 1000)
    return took


def _message(name: str) -> tuple[Operation, ...]:
    address = Address(channel="loopback", kind=PeerKind.DIRECT, peer=name)
    said = Inbound(address=address, sender=Sender(id=name), event_id=name, text="How are you? " * 20, sent_at=NOW)
    return (
        MarkSeen(channel="loopback", account="default", event_id=name, at=NOW),
        AddToInbox(turn=name, inbound=said, scope=name, session=name, number=1, agent="main", at=NOW),
    )


def _bare_ms(path: Path) -> list[float]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        return [_written_ms(descriptor) for _ in range(ALONE)]
    finally:
        os.close(descriptor)


def _written_ms(descriptor: int) -> float:
    started = perf_counter()
    os.write(descriptor, bytes(4096))
    os.fsync(descriptor)
    return (perf_counter() - started) * 1000
