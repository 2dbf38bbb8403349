"""What is committed when a session leaves, and in which order the queue is read."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from config import SessionSettings
from gateway.contract import Address, PeerKind
from gateway.memory.queue import (
    CHANGE_FACTS,
    OUTLINED_FACTS,
    WAITING_FACTS,
    ForgetSession,
    MemoryQueue,
    Waiting,
    leaving_operations,
    moving_operations,
    waiting_operation,
)
from gateway.sessions import Leaving, SessionManager, SessionMeta, entries
from gateway.spool import Operation, SetFact, Spool

SCOPE = "agent:main:telegram:direct:7"
NOW = datetime(2026, 11, 19, 0, 30, tzinfo=UTC)
ON, OFF = SessionSettings(backlog_limit=1), SessionSettings(archive_to_memory=False)
ANN = Address(channel="telegram", kind=PeerKind.DIRECT, peer="7")


async def session(folder: Path, *said: str, scope: str = SCOPE) -> SessionMeta:
    manager = await SessionManager.open(folder, ON, lambda: NOW)
    await manager.recover()
    meta = await manager.start_new(scope, agent="main", origin=ANN)
    await manager.append(meta.key, [entries.User(content=text) for text in said])
    found = manager.find(meta.key)
    await manager.close()
    assert found is not None
    return found


def names(operations: Sequence[Operation]) -> list[str]:
    return [operation.name for operation in operations if isinstance(operation, SetFact)]


@pytest.mark.parametrize("why", [Leaving.ROTATED, Leaving.CLOSED, Leaving.PRUNED, Leaving.EXPIRED])
async def test_a_session_that_ends_is_queued(tmp_path: Path, why: Leaving) -> None:
    meta = await session(tmp_path, "hello")
    assert names(leaving_operations(lambda: ON, meta.key, meta, why)) == [f"{WAITING_FACTS}{SCOPE}"]
    assert not leaving_operations(lambda: OFF, meta.key, meta, why)


async def test_empty_sessions_and_those_of_programs_are_not_queued(tmp_path: Path) -> None:
    empty = await session(tmp_path / "a")
    program = await session(tmp_path / "b", "hello", scope="agent:main:api:direct:x")
    for meta in (empty, program):
        assert not leaving_operations(lambda: ON, meta.key, meta, Leaving.ROTATED)


async def test_a_deleted_session_is_forgotten_even_if_archiving_is_off(tmp_path: Path) -> None:
    meta = await session(tmp_path, "hello")
    waiting, outlined, change = leaving_operations(lambda: OFF, meta.key, meta, Leaving.DELETED)
    assert (waiting, outlined) == tuple(
        SetFact(name=f"{each}{SCOPE}", value=None) for each in (WAITING_FACTS, OUTLINED_FACTS)
    )
    assert isinstance(change, SetFact)
    assert change.name.startswith(f"{CHANGE_FACTS}{SCOPE}\t")
    # West of Greenwich, it is still the day before.
    forget = ForgetSession(scope=SCOPE, session=1, id=meta.id, since="2026-11-18")
    assert msgspec.json.decode(change.value or "", type=ForgetSession) == forget


async def test_leaving_and_queueing_are_one_commit(tmp_path: Path) -> None:
    async with await Spool.open(tmp_path) as spool:
        manager = await SessionManager.open(
            tmp_path / "sessions",
            ON,
            lambda: NOW,
            journal=spool,
            leaving_operations=lambda key, meta, why: leaving_operations(lambda: ON, key, meta, why),
        )
        await manager.recover()
        for number in (1, 2, 3):
            transactions = spool.transactions
            meta = await manager.start_new(SCOPE, agent="main", origin=ANN)
            assert spool.transactions == transactions + 1
            await manager.append(meta.key, [entries.User(content="hello")])
            queued = [f"{WAITING_FACTS}{SCOPE}", f"{WAITING_FACTS}{SCOPE}#2"][: number - 1]
            assert sorted(await spool.facts(WAITING_FACTS)) == queued
        await manager.delete(SCOPE)
        assert sorted(await spool.facts(WAITING_FACTS)) == [f"{WAITING_FACTS}{SCOPE}#2"]
        await manager.close()


async def test_the_queue_is_read_in_order_whatever_its_length(tmp_path: Path) -> None:
    async with await Spool.open(tmp_path) as spool:
        keys = [f"agent:main:telegram:direct:{number:04}" for number in range(450)]
        await spool.commit(*map(waiting_operation, keys), SetFact(name="archivinh", value="not one of them"))
        queue = MemoryQueue(spool)
        assert [key async for key, _ in queue.read(WAITING_FACTS)] == keys
        assert await queue.length(WAITING_FACTS) == 450


async def test_a_session_that_is_queued_once_more_stays_in_the_queue(tmp_path: Path) -> None:
    async with await Spool.open(tmp_path) as spool:
        queue = MemoryQueue(spool)
        await spool.commit(waiting_operation(SCOPE))
        ((key, value),) = [each async for each in queue.read(WAITING_FACTS)]
        await spool.commit(waiting_operation(SCOPE))
        await queue.replace(key, value, None, prefix=WAITING_FACTS)
        await queue.replace(key, value, Waiting(queued=1, failures=1), prefix=WAITING_FACTS)
        ((_, newer),) = [each async for each in queue.read(WAITING_FACTS)]
        assert newer != value
        assert msgspec.json.decode(newer, type=Waiting).failures == 0
        await queue.replace(key, newer, None, prefix=WAITING_FACTS)
        assert await queue.length(WAITING_FACTS) == 0


async def test_a_session_that_waits_goes_on_waiting_under_its_new_key(tmp_path: Path) -> None:
    async with await Spool.open(tmp_path) as spool:
        await spool.commit(waiting_operation(f"{SCOPE}#2"))
        assert await moving_operations(spool, SCOPE, "agent:main:main") == []
        await spool.commit(*await moving_operations(spool, f"{SCOPE}#2", "agent:main:main"))
        assert [*await spool.facts(WAITING_FACTS)] == [f"{WAITING_FACTS}agent:main:main"]
