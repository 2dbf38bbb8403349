from datetime import timedelta

import pytest

from gateway.spool import (
    AppendEntries,
    Duplicate,
    InboxState,
    MarkDead,
    MarkDelivered,
    MarkSending,
    Operation,
    SaveDraft,
    SetInboxState,
    Spool,
    StartTurn,
)
from gateway.spool.retention import ALWAYS_SEEN, DEAD_KEPT, DEAD_LIMIT, FINISHED_LIMIT
from tests.spool.samples import HOUR, NOW, RECEIPT, accept, send, take

LATER = NOW + 49 * HOUR


async def test_events_are_kept_for_two_days(spool: Spool) -> None:
    await spool.commit(*(take(f"old{number}") for number in range(2_000)))
    await spool.commit(*(take(f"new{number}", at=LATER) for number in range(ALWAYS_SEEN)))
    await spool.delete_old_rows(NOW + 47 * HOUR)
    with pytest.raises(Duplicate):
        await spool.commit(take("old0"))
    await spool.delete_old_rows(LATER)
    await spool.commit(take("old0", at=LATER))
    assert (await spool.stats()).seen == ALWAYS_SEEN + 1


async def test_the_newest_events_survive_a_clock_jump(spool: Spool) -> None:
    await spool.commit(take("e1"))
    await spool.delete_old_rows(NOW + timedelta(days=3650))
    with pytest.raises(Duplicate):
        await spool.commit(take("e1"))


async def test_the_number_of_events_is_limited(spool: Spool) -> None:
    await spool.commit(*(take(f"e{number}") for number in range(3_000)))
    await spool.delete_old_rows(NOW, max_seen=1_000)
    assert (await spool.stats()).seen == 1_000
    with pytest.raises(Duplicate):
        await spool.commit(take("e2000"))


def message(turn: str, state: InboxState) -> list[Operation]:
    return [accept(turn), StartTurn(turn=turn), SetInboxState(turn=turn, state=state)]


async def test_finished_rows_are_deleted_earlier_than_dead_ones(spool: Spool) -> None:
    await spool.commit(
        *message("answered", InboxState.ANSWERED),
        *message("dead", InboxState.DEAD),
        *message("waiting", InboxState.WAITING),
        accept("received"),
        *(
            send("delivered"),
            MarkSending(key="delivered", at=NOW),
            MarkDelivered(key="delivered", receipt=RECEIPT, at=NOW),
        ),
        *(send("dead"), MarkDead(key="dead", reason="gone")),
        send("pending"),
    )
    await spool.delete_old_rows(NOW + 47 * HOUR)
    with pytest.raises(Duplicate):
        await spool.commit(accept("answered"))
    await spool.delete_old_rows(LATER)
    await spool.commit(accept("answered"), send("delivered"))
    assert [row.turn for row in (await spool.listing()).inbox] == ["dead"]
    await spool.delete_old_rows(NOW + DEAD_KEPT + HOUR)
    listing = await spool.listing()
    assert (listing.inbox, [row.key for row in listing.outbox]) == ((), ["pending", "delivered"])
    assert {row.turn for row in (await spool.recover()).inbox} == {"waiting", "received", "answered"}


async def test_the_number_of_finished_and_dead_rows_is_limited(spool: Spool) -> None:
    finished = FINISHED_LIMIT + 1_000
    for start in range(0, finished, 1_000):
        await spool.commit(
            *(
                operation
                for number in range(start, start + 1_000)
                for operation in (accept(f"t{number}"), SetInboxState(turn=f"t{number}", state=InboxState.ANSWERED))
            )
        )
    await spool.commit(
        *(
            operation
            for number in range(DEAD_LIMIT + 10)
            for operation in (send(f"k{number}"), MarkDead(key=f"k{number}", reason="gone"))
        )
    )
    await spool.delete_old_rows(NOW)
    await spool.commit(accept("t0"))
    with pytest.raises(Duplicate):
        await spool.commit(accept(f"t{finished - 1}"))
    dead = (await spool.listing(limit=DEAD_LIMIT + 10)).outbox
    assert (len(dead), dead[0].key) == (DEAD_LIMIT, "k10")


async def test_drafts_of_finished_turns_are_deleted(spool: Spool) -> None:
    await spool.commit(accept("open"), *message("ended", InboxState.ANSWERED))
    await spool.commit(*(SaveDraft(turn=turn, receipt=RECEIPT, at=NOW) for turn in ("open", "ended", "unknown")))
    await spool.delete_old_rows(LATER)
    assert set((await spool.recover()).drafts) == {"open"}


async def test_the_space_of_deleted_rows_is_returned(file_spool: Spool) -> None:
    lines = tuple(b"x" * 10_000 for _ in range(200))
    for start in range(0, 2_000, 200):
        await file_spool.commit(AppendEntries(session="s", first_seq=start, lines=lines))
    await file_spool.drop_entries({"s": 2_000})
    await file_spool.delete_old_rows(NOW)
    await file_spool.close()
    assert file_spool.path.stat().st_size < 6_000_000
