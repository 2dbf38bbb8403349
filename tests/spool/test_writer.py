import asyncio
import threading
from pathlib import Path

import pytest

from gateway.spool import AppendEntries, Duplicate, SetFact, Spool, WrongState
from gateway.spool.operations import StartTurn
from tests.spool.conftest import Crash
from tests.spool.harness import WriterGate, held
from tests.spool.samples import accept, send, take


async def test_what_queues_up_is_one_transaction(spool: Spool) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        gate = await held(spool, group)
        before = spool.transactions
        for number in range(100):
            group.create_task(spool.commit(take(f"e{number}")), name=f"commit:{number}")
        await asyncio.sleep(0)
        gate.opened.set()
    assert spool.transactions == before + 2, "the gate's own, and one for all hundred"
    assert (await spool.stats()).seen == 100


async def test_a_rush_is_stored_in_parts_and_the_first_are_told_before_the_last(spool: Spool) -> None:
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


async def test_one_refusal_does_not_hurt_the_others_of_the_batch(spool: Spool, crash: Crash) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        gate = await held(spool, group)
        calls = [
            spool.commit(take("e1"), accept("t1")),
            spool.commit(SetFact(name="lost", value="1"), take("e1"), accept("t2")),
            spool.commit(SetFact(name="lost", value="2"), StartTurn(turn="t9")),
            spool.commit(AppendEntries(session="s", first_seq=0, lines=("not bytes", "\ud800"))),  # type: ignore[arg-type]  # On purpose.
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
    found = await (await crash()).recover()
    assert ([row.turn for row in found.inbox], found.facts) == (["t1", "t3"], {})


async def test_commits_take_effect_in_the_order_of_calls(spool: Spool) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for number in range(3_000):
            group.create_task(spool.commit(send(f"k{number:04}")), name=f"commit:{number}")
    keys = [row.key for row in (await spool.recover()).outbox]
    assert keys == [f"k{number:04}" for number in range(3_000)], "also when more wait than the queue can hold"


async def test_a_read_sees_what_was_committed_before_it(spool: Spool) -> None:
    commit = asyncio.ensure_future(spool.commit(SetFact(name="a", value="1")))
    await asyncio.sleep(0)
    assert (await spool.recover()).facts == {"a": "1"}
    assert commit.done()


async def test_a_cancelled_waiter_does_not_take_its_commit_back(spool: Spool) -> None:
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


async def test_an_opening_that_is_cancelled_leaves_the_file_free(tmp_path: Path) -> None:
    opening = asyncio.ensure_future(Spool.open(tmp_path))
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait([opening])
    for thread in threading.enumerate():
        if thread.name == "spool":
            await asyncio.to_thread(thread.join, 30)
    async with await Spool.open(tmp_path) as spool:
        await spool.commit(accept())


async def test_closing_stores_what_was_committed_before(tmp_path: Path) -> None:
    spool = await Spool.open(tmp_path)
    commits = [asyncio.ensure_future(spool.commit(take(f"e{number}"))) for number in range(50)]
    await asyncio.sleep(0)
    await spool.close()
    assert await asyncio.gather(*commits) == [None] * 50
    with pytest.raises(RuntimeError, match="closed"):
        await spool.commit(take("late"))
    async with await Spool.open(tmp_path) as again:
        assert (await again.stats()).seen == 50


def test_a_loop_that_is_gone_does_not_stop_what_was_queued(tmp_path: Path) -> None:
    gate = WriterGate()

    async def leave_behind() -> Spool:
        spool = await Spool.open(tmp_path)
        for work in (spool._do(gate), spool.commit(take(), accept())):  # noqa: SLF001 - as above
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


async def test_a_disk_that_takes_its_time_shows(spool: Spool) -> None:
    assert spool.busy_for() == 0
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        gate = await held(spool, group)
        assert spool.busy_for() > 0
        gate.opened.set()


async def test_the_log_is_brought_into_the_file_and_stays_small(spool: Spool) -> None:
    for seq in range(60):
        await spool.commit(AppendEntries(session="s", first_seq=seq, lines=(b"x" * 1_000_000,)))
        await spool.drop_entries({"s": seq})
    assert (await spool.stats()).file_bytes < 25_000_000
    for number in range(1_000):
        await spool.commit(take(f"e{number}"), accept(f"t{number}"))
    assert spool.path.stat().st_size > 200_000
