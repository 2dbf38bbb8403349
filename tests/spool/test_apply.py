import asyncio

from gateway.spool import (
    AppendEntries,
    Duplicate,
    InboxState,
    MarkDelivered,
    MarkSeen,
    Operation,
    SetInboxState,
    Spool,
    StartTurn,
)
from gateway.spool.apply import moves
from tests.spool.harness import held
from tests.spool.samples import NOW, RECEIPT, accept, send, take

TURNS = [f"t{number:02}" for number in range(30)]


async def in_one_batch(spool: Spool, *calls: tuple[Operation, ...]) -> list[BaseException | None]:
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        gate = await held(spool, group)
        before = spool.transactions
        outcomes = asyncio.gather(*(spool.commit(*call) for call in calls), return_exceptions=True)
        await asyncio.sleep(0)
        gate.opened.set()
        told = await outcomes
    assert spool.transactions == before + 2, "the gate's own, and one for all"
    return told


async def test_whole_turns_of_many_chats_fit_into_one_batch(spool: Spool) -> None:
    calls: list[tuple[Operation, ...]] = []
    for turn in TURNS:
        calls += [
            (take(f"event of {turn}"), accept(turn)),
            (AppendEntries(session=turn, first_seq=1, lines=(b"asked\n",)), StartTurn(turn=turn)),
            (
                AppendEntries(session=turn, first_seq=2, lines=(b"answered\n", b"over\n")),
                SetInboxState(turn=turn, state=InboxState.ANSWERED, answered_by=turn),
                send(turn),
            ),
            (MarkDelivered(key=turn, receipt=RECEIPT, at=NOW),),
        ]
    assert await in_one_batch(spool, *calls) == [None] * len(calls)
    found = await spool.recover()
    assert (found.inbox, found.outbox) == ((), ())
    assert await spool.delivered_ids(NOW) == {RECEIPT.message_id}
    assert [len(lines) async for _, lines in spool.unflushed_entries()] == [3] * len(TURNS)


async def test_who_is_refused_in_a_crowd_is_the_only_one(spool: Spool) -> None:
    await spool.commit(take("event of t05"))
    told = await in_one_batch(spool, *((take(f"event of {turn}"), accept(turn)) for turn in TURNS))
    assert [type(each) for each in told if each is not None] == [Duplicate]
    assert [row.turn for row in (await spool.recover()).inbox] == [turn for turn in TURNS if turn != "t05"]


def test_what_goes_back_and_forth_is_not_done_together() -> None:
    forth: list[Operation] = [StartTurn(turn="t"), SetInboxState(turn="t", state=InboxState.WAITING)]
    assert moves(forth) == {"t"}
    assert moves([*forth, StartTurn(turn="t")]) is None
    assert moves([]) is None, "what only reads"


def test_entries_and_events_can_be_done_in_any_order() -> None:
    event = MarkSeen(channel="web", account="default", event_id="e", at=NOW)
    assert moves([AppendEntries(session="s", first_seq=1, lines=(b"x",)), event]) == set()
