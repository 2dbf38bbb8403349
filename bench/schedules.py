"""10,000 schedules: what a daemon costs at rest with them, and how fast those that are due at once run."""

import asyncio
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from urllib.request import Request, urlopen

from bench.daemon import Daemon, started
from bench.process import cpu_ms
from bench.table import Row
from gateway.contract import Address, PeerKind, Sender
from gateway.data_dir import prepare_data_dir
from gateway.spool import AddSchedule, Recurrence, ScheduleContent, Spool

SCHEDULES = int(os.environ.get("BENCH_SCHEDULES", "10000"))
SECONDS = float(os.environ.get("BENCH_SCHEDULES_SECONDS", "120"))
PER_COMMIT = 500
SETTLE = 20.0
"""Seconds until the daemon has finished what a start does."""
TARGET_PERCENT = 1.0
_DELIVERED = 'gatehouse_schedule_runs_total{outcome="delivered"}'


def rows() -> list[Row]:
    without = _percent_at_rest(_nothing)
    idle = _percent_at_rest(partial(_store, every=timedelta(days=365)))
    hourly = _percent_at_rest(partial(_store, every=timedelta(hours=1)))
    took = _run_all()
    return [
        Row(
            what=f"CPU at rest with {SCHEDULES:,} schedules, none due",
            measured=f"{idle - without:+.2f} %",
            baseline=f"{without:.2f} % without any",
            target=f"<= {TARGET_PERCENT:g} %",
            is_met=idle - without <= TARGET_PERCENT,
        ),
        Row(
            what=f"CPU while {SCHEDULES:,} schedules deliver a text each hour ({SCHEDULES / 3600:.1f}/s)",
            measured=f"{hourly - without:+.2f} %",
            baseline=f"{without:.2f} % without any",
            target="-",
            is_met=True,
        ),
        Row(
            what=f"{SCHEDULES:,} schedules that are due at once, with a text each",
            measured=f"{SCHEDULES / took:,.0f}/s",
            baseline="-",
            target="-",
            is_met=True,
        ),
    ]


def _nothing(_folder: Path) -> None:
    return


def _store(folder: Path, *, every: timedelta, is_due: bool = False) -> None:
    """Store the schedules, spread evenly over the interval, or all due now."""
    prepare_data_dir(folder)
    asyncio.run(_fill(folder, every, is_due=is_due))


async def _fill(folder: Path, every: timedelta, *, is_due: bool) -> None:
    now = datetime.now(UTC)
    async with await Spool.open(folder) as spool:
        batch: list[AddSchedule] = []
        for number in range(SCHEDULES):
            batch.append(_schedule(number, now, every, is_due=is_due))
            if len(batch) == PER_COMMIT:
                await spool.commit(*batch)
                batch.clear()
        await spool.commit(*batch)


def _schedule(number: int, now: datetime, every: timedelta, *, is_due: bool) -> AddSchedule:
    offset = every * (number + 1) / SCHEDULES
    start = now + offset - every
    peer = f"u{number % 1000}"
    return AddSchedule(
        id=f"{number:08x}",
        scope=f"agent:main:terminal:direct:{peer}",
        due_at=now if is_due else now + offset,
        about=ScheduleContent(
            address=Address(channel="terminal", kind=PeerKind.DIRECT, peer=peer),
            maker=Sender(id=peer, is_owner=True),
            prompt="Look at the news and tell me",
            when=Recurrence(every=every.total_seconds(), start=start),
            created_at=now,
            delivers=True,
        ),
        max_per_scope=SCHEDULES,
        max_total=SCHEDULES + 1,
    )


def _percent_at_rest(prepare: Callable[[Path], None]) -> float:
    """Return the share of one core that a daemon uses."""
    with started(prepare=prepare) as daemon:
        time.sleep(SETTLE)
        before = cpu_ms(daemon.pid)
        time.sleep(SECONDS)
        return (cpu_ms(daemon.pid) - before) / SECONDS / 10


def _run_all() -> float:
    """Return the seconds until all schedules have run that were due at the start."""
    prepare = partial(_store, every=timedelta(days=365), is_due=True)
    with started(prepare=prepare) as daemon:
        began = time.perf_counter()
        while _delivered(daemon) < SCHEDULES:
            time.sleep(0.2)
        return time.perf_counter() - began


def _delivered(daemon: Daemon) -> int:
    request = Request(f"{daemon.url}/metrics", headers={"Authorization": f"Bearer {daemon.token}"})  # noqa: S310 - loopback
    with urlopen(request) as answer:  # noqa: S310 - as above
        lines = answer.read().decode().splitlines()
    return next(int(float(line.split()[-1])) for line in lines if line.startswith(_DELIVERED))
