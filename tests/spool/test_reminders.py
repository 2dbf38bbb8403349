from datetime import datetime, timedelta

import pytest

from gateway.contract import Sender
from gateway.spool import (
    AddReminder,
    CancelReminder,
    MarkDead,
    OutboxState,
    ReminderContent,
    RescheduleReminder,
    Spool,
    TooMany,
    WrongState,
)
from tests.spool.conftest import Crash
from tests.spool.harness import change
from tests.spool.samples import ANN, HOUR, NOW, send

ABOUT = ReminderContent(address=ANN, maker=Sender(id="ann", name="Änn"), text="call mum", guild="g")


def appoint(name: str = "r1", *, scope: str = "s", due_at: datetime = NOW, cron: str | None = None) -> AddReminder:
    return AddReminder(id=name, scope=scope, due_at=due_at, cron=cron, about=ABOUT, max_per_scope=3, max_total=4)


async def test_a_reminder_survives_a_crash(spool: Spool, crash: Crash) -> None:
    await spool.commit(appoint(due_at=NOW + HOUR, cron="0 9 * * *"))
    again = await crash()
    assert await again.next_reminder() == NOW + HOUR
    assert await again.due_reminders(NOW, limit=9) == []
    (row,) = await again.due_reminders(NOW + HOUR, limit=9)
    assert (row.number, row.cron, row.about, row.last_delivery) == (1, "0 9 * * *", ABOUT, None)


async def test_a_reminder_moves_on_together_with_its_message(spool: Spool) -> None:
    await spool.commit(appoint())
    (row,) = await spool.due_reminders(NOW, limit=9)
    ring = RescheduleReminder(id="r1", due_at=NOW, next_at=NOW + HOUR, at=NOW, is_sent=True)
    await spool.commit(ring, send(row.next_key))
    with pytest.raises(WrongState):
        await spool.commit(send("second"), ring)
    (row,) = await spool.reminders("s")
    assert (row.times_sent, row.last_sent_for, row.last_delivery, row.due_at) == (
        1,
        NOW,
        OutboxState.PENDING,
        NOW + HOUR,
    )
    assert {each.key for each in (await spool.recover()).outbox} == {"remind-r1-1"}
    await spool.commit(MarkDead(key="remind-r1-1", reason="gone"))
    assert (await spool.reminders("s"))[0].last_delivery is OutboxState.DEAD


async def test_a_cancelled_reminder_is_no_longer_due(spool: Spool) -> None:
    await spool.commit(appoint())
    await spool.commit(CancelReminder(id="r1", at=NOW))
    assert await spool.reminders("s") == []
    assert await spool.next_reminder() is None
    for late in (CancelReminder(id="r1", at=NOW), RescheduleReminder(id="r1", due_at=NOW, next_at=None, at=NOW)):
        with pytest.raises(WrongState):
            await spool.commit(late)


async def test_a_number_is_not_reused_soon(spool: Spool) -> None:
    await spool.commit(appoint("r1"), appoint("r2"), appoint("other", scope="t"), CancelReminder(id="r2", at=NOW))
    await spool.delete_old_rows(NOW + HOUR)
    await spool.commit(appoint("r3"))
    assert [row.number for row in await spool.reminders("s")] == [1, 3]
    assert [row.number for row in await spool.reminders("t")] == [1]
    await spool.commit(CancelReminder(id="r3", at=NOW))
    await spool.delete_old_rows(NOW + timedelta(days=3))
    await spool.commit(appoint("r4"))
    assert [row.number for row in await spool.reminders("s")] == [1, 2]


async def test_reminders_are_limited_per_scope_and_in_total(spool: Spool) -> None:
    await spool.commit(appoint("r1"), appoint("r2"), appoint("r3"))
    with pytest.raises(TooMany):
        await spool.commit(appoint("r4"))
    await spool.commit(appoint("t1", scope="t"))
    with pytest.raises(TooMany):
        await spool.commit(appoint("t2", scope="t"))
    await spool.commit(CancelReminder(id="r1", at=NOW), appoint("r4"))


async def test_unreadable_reminders_do_not_block_others(spool: Spool) -> None:
    await spool.commit(appoint("bad"), appoint("good"))
    await change(spool, "UPDATE reminders SET about = '{' WHERE id = 'bad'")
    assert [row.id for row in await spool.due_reminders(NOW, limit=1)] == ["good"]
    assert [row.id for row in await spool.reminders("s")] == ["good"]
