from datetime import timedelta

import pytest
from msgspec.structs import replace

from gateway.contract import Scheduled, Sender
from gateway.spool import (
    AddRunUsage,
    AddSchedule,
    ChangeSchedule,
    DeleteSession,
    EndRun,
    EndSchedule,
    FireSchedule,
    InboxState,
    MarkDead,
    MoveRows,
    MoveTimetables,
    NewRun,
    NumberTaken,
    Operation,
    OutboxState,
    PauseSchedule,
    Recurrence,
    RescheduleSchedule,
    ResumeSchedule,
    RunSchedule,
    RunState,
    ScheduleContent,
    ScheduleState,
    SetInboxState,
    Spool,
    TooMany,
    WrongState,
    run_event,
)
from gateway.spool.schedule_operations import RUNS_KEPT
from tests.spool.conftest import Crash
from tests.spool.harness import change
from tests.spool.samples import ANN, HOUR, NOW, accept, inbound, send

ABOUT = ScheduleContent(
    address=ANN, maker=Sender(id="ann", name="Änn"), prompt="news?", when=Recurrence(cron="0 9 * * *"), created_at=NOW
)


def new(name: str = "r1", *, scope: str = "s", number: int = 0) -> AddSchedule:
    return AddSchedule(id=name, scope=scope, number=number, due_at=NOW, about=ABOUT, max_per_scope=3, max_total=4)


def fire(name: str = "r1", *, number: int = 1, state: RunState = RunState.RUNNING, note: str = "") -> FireSchedule:
    at = NOW + (number - 1) * HOUR
    return FireSchedule(
        id=name,
        due_at=at,
        next_at=at + HOUR,
        planned_at=at + HOUR,
        at=at,
        state=ScheduleState.ACTIVE,
        run=NewRun(number=number, state=state, planned_at=at, session="s#2", note=note),
        seen="",
        failures=0,
        note="",
    )


def message(name: str = "r1", number: int = 1) -> Operation:
    event = run_event(name, number)
    told = replace(inbound("news?", event), scheduled=Scheduled(id=name, number=1, run=number))
    return replace(accept(event), inbound=told, scope="s", session="s#2")


async def test_a_schedule_survives_a_crash(spool: Spool, crash: Crash) -> None:
    await spool.commit(new())
    again = await crash()
    assert await again.next_schedule([]) == NOW
    assert await again.next_schedule(["r1"]) is None
    assert await again.due_schedules(NOW - HOUR, limit=9, excluded=[]) == []
    (row,) = await again.due_schedules(NOW, limit=9, excluded=[])
    assert (row.number, row.about, row.last_delivery, row.is_running) == (1, ABOUT, None, False)


async def test_a_schedule_moves_on_together_with_its_message(spool: Spool) -> None:
    await spool.commit(new())
    await spool.commit(message(), fire())
    with pytest.raises(WrongState):  # It was fired in the meantime.
        await spool.commit(message(number=2), fire())
    (row,) = await spool.schedules("s")
    assert (row.due_at, row.ran_for, row.runs, row.session, row.is_running) == (NOW + HOUR, NOW, 1, "s#2", True)
    assert [each.inbound.event_id for each in (await spool.recover()).inbox] == ["schedule-r1-1"]


async def test_a_run_ends_with_its_turn_or_with_its_message(spool: Spool) -> None:
    await spool.commit(new(), message(), fire())
    turn = (await spool.open_messages("s#2"))[0].turn
    assert [run.state for run in await spool.schedule_runs("r1", limit=9)] == [RunState.RUNNING]
    await spool.commit(SetInboxState(turn=turn, state=InboxState.ABANDONED))
    assert [run.state for run in await spool.schedule_runs("r1", limit=9)] == [RunState.STOPPED]
    await spool.commit(message(number=2), fire(number=2))
    failure = EndRun(
        schedule="r1", number=2, state=RunState.FAILED, at=NOW, note="why", failures=1, retry_at=NOW + 5 * HOUR
    )
    await spool.commit(failure)
    (row,) = await spool.schedules("s")
    assert (row.failures, row.due_at, row.note) == (1, NOW + 5 * HOUR, "why")
    await spool.commit(EndRun(schedule="r1", number=2, state=RunState.DONE, at=NOW))  # It has ended already.
    assert [(run.state, run.note) for run in await spool.schedule_runs("r1", limit=1)] == [(RunState.FAILED, "why")]


async def test_the_last_failure_of_a_schedule_with_one_time_makes_it_active_again(spool: Spool) -> None:
    await spool.commit(new(), message(), replace(fire(), next_at=None, planned_at=None, state=ScheduleState.ENDED))
    assert await spool.schedules("s") == []
    end = EndRun(schedule="r1", number=1, state=RunState.FAILED, at=NOW, failures=1, retry_at=NOW + HOUR)
    await spool.commit(end)
    (row,) = await spool.schedules("s")
    assert (row.state, row.due_at) == (ScheduleState.ACTIVE, NOW + HOUR)


async def test_an_answer_that_cannot_be_delivered_is_noticed_until_the_schedule_is_resumed(spool: Spool) -> None:
    await spool.commit(new(), fire(state=RunState.DELIVERED), send(run_event("r1", 1)))
    assert (await spool.schedules("s"))[0].last_delivery is OutboxState.PENDING
    await spool.commit(MarkDead(key=run_event("r1", 1), reason="gone"))
    assert (await spool.schedules("s"))[0].last_delivery is OutboxState.DEAD
    await spool.commit(PauseSchedule(id="r1"), ResumeSchedule(id="r1", due_at=NOW))
    assert (await spool.schedules("s"))[0].last_delivery is None


async def test_runs_that_do_nothing_are_counted_and_the_history_is_bounded(spool: Spool) -> None:
    await spool.commit(new(), *(fire(number=1, state=RunState.UNCHANGED),))
    for hours in range(1, 4):
        again = replace(
            fire(number=hours + 1, state=RunState.UNCHANGED), run=fire(number=2, state=RunState.UNCHANGED).run
        )
        await spool.commit(again)
    (run,) = await spool.schedule_runs("r1", limit=9)
    assert (run.state, run.times, run.number) == (RunState.UNCHANGED, 4, 1)
    await spool.commit(RescheduleSchedule(id="r1", due_at=NOW + 4 * HOUR, next_at=NOW + HOUR, planned_at=NOW + HOUR))
    for number in range(2, RUNS_KEPT + 10):
        await spool.commit(fire(number=number, state=RunState.DELIVERED))
    assert len(await spool.schedule_runs("r1", limit=999)) == RUNS_KEPT


async def test_usage_is_added_to_the_run_and_to_the_day(spool: Spool) -> None:
    await spool.commit(new(), fire())
    for day in ("2026-03-01", "2026-03-01", "2026-03-02"):
        await spool.commit(AddRunUsage(schedule="r1", number=1, day=day, tokens=10, cost_micros=3))
    (row,) = await spool.schedules("s")
    assert (row.spent_day, row.spent_tokens, row.spent_micros) == ("2026-03-02", 10, 3)
    (run,) = await spool.schedule_runs("r1", limit=9)
    assert (run.tokens, run.cost_micros) == (30, 9)


async def test_pausing_resuming_and_running(spool: Spool) -> None:
    await spool.commit(new(), PauseSchedule(id="r1", note="why"))
    assert await spool.next_schedule([]) is None
    with pytest.raises(WrongState):
        await spool.commit(PauseSchedule(id="r1"))
    await spool.commit(RunSchedule(id="r1", at=NOW))
    (row,) = await spool.due_schedules(NOW, limit=9, excluded=[])
    assert (row.state, row.is_forced) == (ScheduleState.PAUSED, True)
    await spool.commit(ResumeSchedule(id="r1", due_at=NOW + HOUR))
    assert await spool.next_schedule([]) == NOW + HOUR
    assert await spool.schedule_counts() == {"active": 1, "paused": 0, "failing": 0}
    await spool.commit(EndSchedule(id="r1", state=ScheduleState.DELETED, at=NOW))
    for late in (RunSchedule(id="r1", at=NOW), EndSchedule(id="r1", state=ScheduleState.ENDED, at=NOW)):
        with pytest.raises(WrongState):
            await spool.commit(late)


async def test_a_change_keeps_number_and_history(spool: Spool) -> None:
    await spool.commit(new(), fire(state=RunState.DELIVERED))
    changed = replace(ABOUT, prompt="other")
    await spool.commit(ChangeSchedule(id="r1", scope="s", about=changed, due_at=NOW + 2 * HOUR))
    (row,) = await spool.schedules("s")
    assert (row.about, row.due_at, row.number, row.runs) == (changed, NOW + 2 * HOUR, 1, 1)
    await spool.commit(ChangeSchedule(id="r1", scope="t", about=changed, due_at=NOW))
    assert [row.number for row in await spool.schedules("t")] == [1]
    await spool.commit(EndSchedule(id="r1", state=ScheduleState.ENDED, at=NOW), new())
    assert [(row.scope, row.runs, row.about) for row in await spool.schedules()] == [("s", 1, ABOUT)]


async def test_a_number_is_not_reused_soon_and_not_given_twice(spool: Spool) -> None:
    await spool.commit(new("a"), new("b"), EndSchedule(id="b", state=ScheduleState.DELETED, at=NOW), fire("a"))
    await spool.delete_old_rows(NOW + HOUR)
    with pytest.raises(NumberTaken):
        await spool.commit(new("c", number=2))
    await spool.commit(new("c", number=3), EndSchedule(id="a", state=ScheduleState.ENDED, at=NOW))
    await spool.delete_old_rows(NOW + timedelta(days=30))
    assert [row.id for row in await spool.schedules(ended=True)] == ["c"]
    assert await spool.schedule_runs("a", limit=9) == []


async def test_schedules_are_limited_per_scope_and_in_total(spool: Spool) -> None:
    await spool.commit(new("a"), new("b"), new("c"))
    with pytest.raises(TooMany):
        await spool.commit(new("d"))
    await spool.commit(new("t1", scope="t"))
    with pytest.raises(TooMany):
        await spool.commit(new("t2", scope="t"))


async def test_unreadable_schedules_do_not_block_others(spool: Spool) -> None:
    await spool.commit(new("bad"), new("good"))
    await change(spool, "UPDATE schedules SET about = '{' WHERE id = 'bad'")
    assert [row.id for row in await spool.due_schedules(NOW, limit=1, excluded=[])] == ["good"]
    assert [row.id for row in await spool.schedules("s")] == ["good"]


async def test_schedules_follow_their_scope_and_forget_a_deleted_session(spool: Spool) -> None:
    await spool.commit(new("a"), new("config-b"), fire("a"))
    await spool.commit(MoveRows(session="s#2", to="t#5", scope="t", number=5), MoveTimetables(scope="s", to="t"))
    assert [(row.id, row.session) for row in await spool.schedules("t")] == [("a", "t#5")]
    assert [row.id for row in await spool.schedules("s")] == ["config-b"]
    await spool.commit(DeleteSession(session="t#5", scope="t"))
    assert [row.session for row in await spool.schedules("t")] == [""]
    assert [run.session for run in await spool.schedule_runs("a", limit=9)] == [""]
