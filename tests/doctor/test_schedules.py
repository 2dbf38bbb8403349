"""What doctor says about schedules."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec.structs import replace

from config import Settings
from gateway.cli.schedules import list_schedules
from gateway.contract import Address, PeerKind, Sender
from gateway.doctor.finding import Level
from gateway.doctor.stores import check_schedules
from gateway.spool import (
    CONFIGURED,
    AddSchedule,
    EndRun,
    FireSchedule,
    NewRun,
    Operation,
    PauseSchedule,
    Recurrence,
    RunState,
    ScheduleContent,
    ScheduleState,
    Spool,
)
from tests.daemon.harness import settings

NOW = datetime(2026, 3, 1, tzinfo=UTC)
ABOUT = ScheduleContent(
    address=Address(channel="loopback", kind=PeerKind.DIRECT, peer="ada"),
    maker=Sender(id="ada"),
    prompt="news?",
    when=Recurrence(cron="0 9 * * *"),
    created_at=NOW,
)


def new(name: str) -> AddSchedule:
    return AddSchedule(id=name, scope="s", due_at=NOW, about=ABOUT, max_per_scope=9, max_total=9)


def failed(name: str) -> list[Operation]:
    later = NOW + timedelta(hours=1)
    run = NewRun(number=1, state=RunState.RUNNING, planned_at=NOW)
    fire = FireSchedule(
        id=name,
        due_at=NOW,
        next_at=later,
        planned_at=later,
        at=NOW,
        state=ScheduleState.ACTIVE,
        run=run,
        seen="",
        failures=0,
        note="",
    )
    return [
        fire,
        EndRun(schedule=name, number=1, state=RunState.FAILED, at=NOW, note="The key was rejected.", failures=1),
    ]


async def findings(configured: Settings, *operations: Operation) -> list[tuple[Level, str, str]]:
    async with await Spool.open(configured.gateway.data_dir) as spool:
        await spool.commit(*operations)
    return [(each.level, each.message, each.fix) for each in check_schedules(await list_schedules(configured))]


async def test_schedules_that_fail_or_that_the_gateway_has_paused_are_warnings(tmp_path: Path) -> None:
    configured = settings(tmp_path)
    configured.gateway.data_dir.mkdir(mode=0o700)
    config = replace(new(f"{CONFIGURED}news"), about=replace(ABOUT, maker=Sender(id="schedule:news", schedule="news")))
    paused = PauseSchedule(id=config.id, note="its last answer could not be delivered.")
    assert await findings(configured, new("a"), *failed("a"), config, paused) == [
        (Level.WARNING, "a fails: The key was rejected.", "`gatehouse schedules show a`"),
        (
            Level.WARNING,
            "news is paused: its last answer could not be delivered.",
            "Fix that, and run `gatehouse schedules resume config-news`.",
        ),
    ]


async def test_schedules_that_work_or_that_a_person_has_paused_are_fine(tmp_path: Path) -> None:
    configured = settings(tmp_path)
    configured.gateway.data_dir.mkdir(mode=0o700)
    paused = [new("b"), PauseSchedule(id="b"), new("c"), *failed("c"), PauseSchedule(id="c")]
    assert await findings(configured, new("a"), *paused) == [(Level.OK, "3 schedules, none is failing.", "")]
