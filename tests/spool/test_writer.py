import asyncio
import threading
from pathlib import Path

import pytest

from gateway.spool import (
    AppendEntries,
    Duplicate,
    InboxState,
    MarkDelivered,
    Operation,
    SetFact,
    SetInboxState,
    Spool,
    StartTurn,
    WrongState,
)
from tests.spool.conftest import Crash, OpenSpool
from tests.spool.harness import WriterGate, held
from tests.spool.samples import NOW, RECEIPT, accept, send, take

TURNS = [f"t{number:02}" for number in range(30)]


async def commit_in_one_batch(spool: Spool, *calls: tuple[Operation, ...]) -> list[BaseException | None]:
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        gate = await held(spool, group)
        before = spool.transactions
        outcomes = asyncio.gather(*(spool.commit(*call) for call in calls), return_exceptions=True)
        await asyncio.sleep(0)
        gate.opened.set()
        errors = await outcomes
    assert spool.transactions == before + 2, "the gate's own, and one for all"
    return errors


async def test_queued_commits_share_one_transaction(spool: Spool) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        gate = await held(spool, group)
        before = spool.transactions
        for number in range(100):
            group.create_task(spool.commit(take(f"e{number}")), name=f"commit:{number}")
        await asyncio.sleep(0)
        gate.opened.set()
    assert spool.transactions == before + 2, "the gate's own, and one for all hundred"
    assert (await spool.stats()).seen == 100


async def test_a_long_queue_is_committed_in_parts_and_the_first_callers_return_first(spool: Spool) -> None:
    told: list[int] = []

    async def commit(number: int) -> None:
        await spool.commit(take(f"e{number}"))
        told.append(spool.transactions)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        gate = await held(spool, group)
        before = spool.transactions
        for number in range(1_000):
            group.create_task(commit(number), name=f"commit:{number}")
        await asyncio.sleep(0)
        gate.opened.set()
    assert spool.transactions == before + 1 + 8, "the gate's own, and one for each 128"
    assert told == sorted(told)
    assert (await spool.stats()).seen == 1_000


async def test_a_refused_commit_does_not_affect_others_in_the_batch(spool: Spool, crash: Crash) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        gate = await held(spool, group)
        calls = [
            spool.commit(take("e1"), accept("t1")),
            spool.commit(SetFact(name="lost", value="1"), take("e1"), accept("t2")),
            spool.commit(SetFact(name="lost", value="2"), StartTurn(turn="t9")),
            spool.commit(SetFact(name="lost", value="\ud800")),
            spool.commit(take("e2"), accept("t3")),
        ]
        outcomes = asyncio.gather(*calls, return_exceptions=True)
        await asyncio.sleep(0)
        gate.opened.set()
        first, duplicate, wrong, bug, last = await outcomes
    assert (first, last) == (None, None)
    assert isinstance(duplicate, Duplicate)
    assert isinstance(wrong, WrongState)
    assert isinstance(bug, UnicodeEncodeError)
    stored = await crash()
    assert [row.turn for row in (await stored.recover()).inbox] == ["t1", "t3"]
    assert await stored.facts() == {}


async def test_commits_take_effect_in_the_order_of_calls(spool: Spool) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for number in range(3_000):
            group.create_task(spool.commit(send(f"k{number:04}")), name=f"commit:{number}")
    keys = [row.key for row in (await spool.recover()).outbox]
    assert keys == [f"k{number:04}" for number in range(3_000)], "also when more wait than the queue can hold"


async def test_a_read_sees_earlier_commits(spool: Spool) -> None:
    commit = asyncio.ensure_future(spool.commit(SetFact(name="a", value="1")))
    await asyncio.sleep(0)
    assert await spool.facts() == {"a": "1"}
    assert commit.done()


async def test_cancelling_a_caller_does_not_undo_its_commit(spool: Spool) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        gate = await held(spool, group)
        waiting = group.create_task(spool.commit(take(), accept()), name="cancelled")
        refused = group.create_task(spool.commit(StartTurn(turn="t9")), name="cancelled and refused")
        await asyncio.sleep(0)
        waiting.cancel()
        refused.cancel()
        await asyncio.wait([waiting, refused])
        gate.opened.set()
    assert len((await spool.recover()).inbox) == 1


async def test_cancelling_open_releases_the_spool(open_spool: OpenSpool) -> None:
    opening = asyncio.ensure_future(open_spool())
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait([opening])
    for thread in threading.enumerate():
        if thread.name == "spool":
            await asyncio.to_thread(thread.join, 30)
    await (await open_spool()).commit(accept())


async def test_close_stores_earlier_commits(open_spool: OpenSpool) -> None:
    spool = await open_spool()
    commits = [asyncio.ensure_future(spool.commit(take(f"e{number}"))) for number in range(50)]
    await asyncio.sleep(0)
    await spool.close()
    assert await asyncio.gather(*commits) == [None] * 50
    with pytest.raises(RuntimeError, match="closed"):
        await spool.commit(take("late"))
    assert (await (await open_spool()).stats()).seen == 50


def test_queued_commits_are_stored_after_the_loop_has_ended(tmp_path: Path) -> None:
    gate = WriterGate()

    async def leave_behind() -> Spool:
        spool = await Spool.open(tmp_path)
        for work in (spool._writer.run(gate), spool.commit(take(), accept())):  # noqa: SLF001 - as above
            asyncio.ensure_future(work)  # noqa: RUF006 - cancelled with the loop, on purpose
        await asyncio.to_thread(gate.reached.wait, 30)
        return spool

    spool = asyncio.run(leave_behind())
    gate.opened.set()

    async def look() -> int:
        await spool.close()
        async with await Spool.open(tmp_path) as again:
            return len((await again.recover()).inbox)

    assert asyncio.run(look()) == 1


async def test_busy_for_shows_a_slow_disk(spool: Spool) -> None:
    assert spool.busy_for() == 0
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        gate = await held(spool, group)
        assert spool.busy_for() > 0
        gate.opened.set()


async def test_checkpoints_keep_the_wal_small(file_spool: Spool) -> None:
    for seq in range(60):
        await file_spool.commit(AppendEntries(session="s", first_seq=seq, lines=(b"x" * 1_000_000,)))
        await file_spool.drop_entries({"s": seq})
    assert (await file_spool.stats()).file_bytes < 25_000_000
    for number in range(1_000):
        await file_spool.commit(take(f"e{number}"), accept(f"t{number}"))
    assert file_spool.path.stat().st_size > 200_000


async def test_whole_turns_of_many_chats_fit_into_one_batch(spool: Spool) -> None:
    calls: list[tuple[Operation, ...]] = []
    for turn in TURNS:
        calls += [
            (take(f"event of {turn}"), accept(turn)),
            (SetFact(name=turn, value="asked"), StartTurn(turn=turn)),
            (
                SetFact(name=turn, value="answered"),
                SetInboxState(turn=turn, state=InboxState.ANSWERED, answered_by=turn),
                send(turn),
            ),
            (MarkDelivered(key=turn, receipt=RECEIPT, at=NOW),),
        ]
    assert await commit_in_one_batch(spool, *calls) == [None] * len(calls)
    found = await spool.recover()
    assert (found.inbox, found.outbox) == ((), ())
    assert await spool.delivered_ids(NOW) == {RECEIPT.message_id}
    assert await spool.facts() == dict.fromkeys(TURNS, "answered")


async def test_a_duplicate_in_a_large_batch_is_the_only_one_refused(spool: Spool) -> None:
    await spool.commit(take("event of t05"))
    errors = await commit_in_one_batch(spool, *((take(f"event of {turn}"), accept(turn)) for turn in TURNS))
    assert [type(each) for each in errors if each is not None] == [Duplicate]
    assert [row.turn for row in (await spool.recover()).inbox] == [turn for turn in TURNS if turn != "t05"]


async def test_a_delayed_commit_goes_with_the_next_one(spool: Spool) -> None:
    before = spool.transactions
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(spool.commit(take("delayed"), max_delay=3_600), name="delayed")
        await asyncio.sleep(0)
        await spool.commit(take("at once"))
    assert spool.transactions == before + 1


async def test_a_delayed_commit_is_stored_without_company(spool: Spool) -> None:
    async with asyncio.timeout(60):
        await spool.commit(take("delayed"), max_delay=0.001)
    assert (await spool.stats()).seen == 1


async def test_close_stores_delayed_commits(open_spool: OpenSpool) -> None:
    spool = await open_spool()
    delayed = asyncio.ensure_future(spool.commit(take("delayed"), max_delay=3_600))
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await spool.close()
        await delayed
    assert (await (await open_spool()).stats()).seen == 1


async def test_a_bug_in_one_callback_does_not_cost_the_other_callers_their_outcome(spool: Spool) -> None:
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))

    def fail(_error: BaseException | None) -> None:
        raise ValueError("a bug")

    first = asyncio.create_task(spool.commit(SetFact(name="a", value="1"), on_done=fail), name="first")
    second = asyncio.create_task(spool.commit(SetFact(name="b", value="2")), name="second")
    await asyncio.gather(first, second)
    assert await spool.facts() == {"a": "1", "b": "2"}
    assert [str(context["exception"]) for context in reported] == ["a bug"]
