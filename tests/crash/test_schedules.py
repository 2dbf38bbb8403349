"""Kills daemons at every kill point while they run a due schedule, with each storage engine."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from config import Settings
from gateway.contract import Address, PeerKind, Sender
from gateway.data_dir import prepare_data_dir
from gateway.outbound.delivery import POSSIBLY_REPEATED
from gateway.spool import AddSchedule, Recurrence, ScheduleContent
from gateway.storage import open_storage
from tests.crash.daemon_spec import CHANNEL, DaemonSpec
from tests.crash.daemons import Daemons, daemons
from tests.crash.engines import DATABASE_MODULES, ENGINES, NewStorage
from tests.crash.fake_platform import FakePlatform
from tests.crash.harness import CrashHarness
from tests.crash.scale import SCALE
from tests.crash.stored import inbox, rows, transcripts

STRIDES = {"files": max(1, 6 // SCALE), "sqlite": max(1, 20 // SCALE), "postgresql": max(1, 30 // SCALE)}
"""The distance between tried kill points."""

OWNER = Address(channel=CHANNEL, kind=PeerKind.DIRECT, peer="owner")
SCOPE = f"agent:main:{CHANNEL}:direct:owner"


async def store_due_schedule(spec: DaemonSpec) -> None:
    """Create a storage with a yearly schedule that is overdue."""
    prepare_data_dir(spec.data_dir)
    settings = Settings.model_validate({"gateway": {"data_dir": spec.data_dir}, "storage": {"url": spec.storage}})
    new = AddSchedule(
        id="s",
        scope=SCOPE,
        due_at=datetime(2020, 1, 1, tzinfo=UTC),
        about=ScheduleContent(
            address=OWNER,
            maker=Sender(id="owner"),
            prompt="m1 tool",
            when=Recurrence(cron="0 0 1 1 *"),
            created_at=datetime(2019, 1, 1, tzinfo=UTC),
        ),
        max_per_scope=1,
        max_total=1,
    )
    async with open_storage(settings) as (spool, _):
        await spool.commit(new)


@asynccontextmanager
async def harness_with_due_schedule(home: Path, storage: str, forked: Daemons) -> AsyncIterator[CrashHarness]:
    spec, platform = DaemonSpec(home=home, storage=storage), FakePlatform()
    await store_due_schedule(spec)
    async with asyncio.timeout(60), platform.serving(spec.socket):
        yield CrashHarness(spec=spec, platform=platform, daemons=forked)


async def kill_at(harness: CrashHarness, at: int) -> bool:
    """Run a daemon that dies at that point. Returns False if it sent the answer, and was stopped, before it."""
    pid = await harness.daemons.start(replace(harness.spec, die_at=at))
    sent = asyncio.create_task(harness.platform.until(lambda: bool(harness.platform.shown)), name="sent")
    ended = asyncio.create_task(harness.daemons.ended(pid), name="ended")
    await asyncio.wait({sent, ended}, return_when=asyncio.FIRST_COMPLETED)
    for task in (sent, ended):
        task.cancel()
    await asyncio.wait({sent, ended})
    return await harness.daemons.stop(pid) == -signal.SIGKILL


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_schedule_runs_once_wherever_the_daemon_is_killed(
    tmp_path: Path, storages: NewStorage, engine: str
) -> None:
    at, deaths, has_died = 1, 0, True
    async with daemons(imports=() if engine == "files" else DATABASE_MODULES) as forked:
        while has_died:
            home = tmp_path / str(at)
            home.mkdir()
            with storages(home) as storage:
                async with harness_with_due_schedule(home, storage, forked) as harness:
                    has_died = await kill_at(harness, at)
                    pid = await harness.start()
                    await harness.platform.until(lambda platform=harness.platform: bool(platform.shown))  # type: ignore[misc]  # mypy knows no default here.
                    await harness.stop(pid)
                    check(harness, has_died=has_died)
            at, deaths = at + STRIDES[engine], deaths + has_died
    assert deaths > 2, "the daemon reached no kill points"


def check(harness: CrashHarness, *, has_died: bool) -> None:
    """Assert one message, one run and one unmarked answer at most, and a marked one only after a death."""
    spec = harness.spec
    shown = [
        each.text for each in harness.platform.shown if each.text.startswith(("answer", POSSIBLY_REPEATED, "step"))
    ]
    assert len([text for text in shown if not text.startswith(POSSIBLY_REPEATED)]) <= 1
    assert 1 <= len(shown) <= 1 + has_died
    assert [(each.event, each.state) for each in inbox(spec)] == [("schedule-s-1", "answered")]
    assert rows(spec, "SELECT number, state FROM schedule_runs") == [(1, "done")]
    assert rows(spec, "SELECT runs, state, failures FROM schedules") == [(1, "active", 0)]
    entries = [entry for found in transcripts(spec).values() for entry in found]
    assert len([entry for entry in entries if entry["type"] == "user"]) == 1, json.dumps(entries)
