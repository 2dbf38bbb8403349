"""Deleting, pruning and sweeping remove the right sessions from everywhere, and no others."""

import asyncio
import os
from datetime import timedelta
from pathlib import Path

import pytest

from config import SessionSettings
from gateway.errors import Refused
from gateway.sessions import Leaving, SessionManager, SessionMeta, SessionStatus
from gateway.sessions import entries as e
from gateway.sessions.keys import file_name, session_key
from tests.sessions.conftest import ANN, SCOPE, Clock, OpenManager
from tests.sessions.samples import encoded, header


def numbers(manager: SessionManager) -> list[int]:
    return [meta.number for meta in manager.list(SCOPE)]


def active(manager: SessionManager) -> int | None:
    meta = manager.active(SCOPE)
    return meta.number if meta else None


def transcript(directory: Path, number: int) -> Path:
    return directory / "transcripts" / file_name(session_key(SCOPE, number))


async def start(manager: SessionManager, count: int = 1) -> None:
    for _ in range(count):
        await manager.start_new(SCOPE, agent="main", origin=ANN)


async def test_a_deleted_session_is_removed_from_disk_memory_and_index(
    manager: SessionManager, open_manager: OpenManager, directory: Path
) -> None:
    await start(manager, 3)
    await manager.delete(f"{SCOPE}#2")
    assert numbers(manager) == [3, 1]
    assert not transcript(directory, 2).exists()
    with pytest.raises(Refused):
        await manager.load(f"{SCOPE}#2")
    assert numbers(await open_manager()) == [3, 1]


async def test_deleting_an_unknown_session_is_refused(manager: SessionManager) -> None:
    with pytest.raises(Refused, match="no longer exists"):
        await manager.delete(SCOPE)


async def test_deleting_the_active_session_leaves_the_newest_other_active(
    manager: SessionManager, open_manager: OpenManager, directory: Path
) -> None:
    await start(manager, 3)
    await manager.resume(SCOPE, 1)
    await manager.delete(SCOPE)
    assert active(manager) == 3
    await manager.flush()
    (directory / "index.json").unlink()
    assert active(await open_manager()) == 3


async def test_deleting_the_only_session_leaves_none_and_its_number_unused(manager: SessionManager) -> None:
    await start(manager)
    await manager.delete(SCOPE)
    assert active(manager) is None
    assert (await manager.resolve_active(SCOPE, agent="main", origin=ANN)).number == 2


async def test_a_running_turn_cannot_restore_a_deleted_session(manager: SessionManager, directory: Path) -> None:
    await start(manager)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(manager.append(SCOPE, [e.User(content="before")]), name="before")
        tasks.create_task(manager.delete(SCOPE), name="delete")
    for _ in range(2):
        with pytest.raises(Refused):
            await manager.append(SCOPE, [e.Assistant(content="after")])
        await manager.flush()
    assert not transcript(directory, 1).exists()
    await start(manager)
    assert numbers(manager) == [2]


@pytest.mark.files_only  # In a database, the read may come before the deletion.
async def test_a_session_deleted_while_it_is_being_read_stays_deleted(
    manager: SessionManager, open_manager: OpenManager
) -> None:
    await start(manager)
    cold = await open_manager()
    results = await asyncio.gather(cold.load(SCOPE), cold.delete(SCOPE), return_exceptions=True)
    assert isinstance(results[0], Refused)
    assert numbers(cold) == []


@pytest.mark.parametrize("has_index", [True, False])
async def test_numbers_are_not_reused_after_a_prune(
    manager: SessionManager, open_manager: OpenManager, directory: Path, *, has_index: bool
) -> None:
    await start(manager, 3)
    await manager.resume(SCOPE, 1)
    assert await manager.prune(SCOPE, 1) == [f"{SCOPE}#2", f"{SCOPE}#3"]
    await manager.flush()
    if not has_index:
        (directory / "index.json").unlink()
    again = await open_manager()
    assert (numbers(again), active(again)) == ([1], 1)
    assert (await again.start_new(SCOPE, agent="main", origin=ANN)).number == 4


async def test_the_least_recently_used_sessions_are_pruned_first_even_with_a_wrong_clock(directory: Path) -> None:
    clock = Clock()
    manager = await SessionManager.open(directory, SessionSettings(backlog_limit=3), clock)
    await manager.recover()
    await start(manager, 3)
    clock.now -= timedelta(days=3650)
    await manager.resume(SCOPE, 1)
    clock.now += timedelta(days=3651)
    await start(manager)
    assert numbers(manager) == [4, 3, 1]
    await manager.close()


async def test_neither_the_active_session_nor_a_busy_one_is_pruned(directory: Path) -> None:
    busy = {SCOPE}
    manager = await SessionManager.open(directory, SessionSettings(backlog_limit=1), Clock())
    await manager.recover()
    for _ in range(3):
        await manager.start_new(SCOPE, agent="main", origin=ANN, is_busy=lambda key: key in busy)
    assert numbers(manager) == [3, 1]
    busy.clear()
    assert await manager.prune(SCOPE) == [SCOPE]
    await manager.close()


async def test_the_archiver_is_told_before_a_session_is_removed(directory: Path) -> None:
    left: list[tuple[int, Leaving, bool]] = []

    async def archive(meta: SessionMeta, why: Leaving) -> None:
        left.append((meta.number, why, transcript(directory, meta.number).exists()))

    manager = await SessionManager.open(directory, SessionSettings(backlog_limit=1), Clock(), on_leaving=archive)
    await manager.recover()
    await start(manager, 2)
    await manager.delete(f"{SCOPE}#2")
    assert left == [(1, Leaving.ROTATED, True), (1, Leaving.PRUNED, True), (2, Leaving.DELETED, True)]
    await manager.close()


async def test_sessions_unused_for_the_ttl_are_removed(directory: Path) -> None:
    clock = Clock()
    manager = await SessionManager.open(directory, SessionSettings(ttl_days=30), clock)
    await manager.recover()
    await start(manager, 3)
    clock.now += timedelta(days=29)
    await manager.append(f"{SCOPE}#2", [e.User(content="still here")])
    clock.now += timedelta(days=2)
    report = await manager.sweep(is_busy=lambda key: key == SCOPE)
    assert (report.expired, report.is_done) == ((f"{SCOPE}#3",), True)
    assert numbers(manager) == [2, 1]
    await manager.close()


async def test_a_clock_set_back_makes_no_session_old(directory: Path) -> None:
    clock = Clock()
    manager = await SessionManager.open(directory, SessionSettings(), clock)
    await manager.recover()
    await start(manager)
    clock.now -= timedelta(days=3650)
    await manager.append(SCOPE, [e.User(content="in the past")])
    clock.now += timedelta(days=3650)
    assert (await manager.sweep()).expired == ()
    assert [entry.seq for entry in (await manager.load(SCOPE)).entries] == [1, 2, 3]
    await manager.close()


async def test_completing_an_idle_session_does_not_count_as_use(directory: Path) -> None:
    clock = Clock()
    manager = await SessionManager.open(directory, SessionSettings(idle_minutes=30), clock)
    await manager.recover()
    await start(manager, 2)
    clock.now += timedelta(minutes=20)
    await manager.append(f"{SCOPE}#2", [e.User(content="hi")])
    clock.now += timedelta(minutes=20)
    before = manager.list(SCOPE)[1]
    assert (await manager.sweep()).completed == (SCOPE,)
    after = manager.list(SCOPE)[1]
    assert (after.status, after.last_accessed) == (SessionStatus.COMPLETED, before.last_accessed)
    assert (after.status_by, after.status_why) == ("gateway", "idle_timeout")
    assert (await manager.sweep()).completed == ()
    await manager.close()


async def test_older_entries_of_idle_sessions_do_not_count_as_use_either(directory: Path) -> None:
    clock = Clock()
    manager = await SessionManager.open(directory, SessionSettings(), clock)
    await manager.recover()
    await start(manager)
    before = manager.list(SCOPE)[0]
    clock.now += timedelta(minutes=20)
    await manager.append(SCOPE, [e.Status(value=SessionStatus.COMPLETED, by="idle", why="No messages for a while.")])
    assert manager.list(SCOPE)[0].last_accessed == before.last_accessed
    await manager.close()


async def test_sessions_of_an_agent_can_have_their_own_idle_time(directory: Path) -> None:
    clock = Clock()
    manager = await SessionManager.open(directory, SessionSettings(idle_minutes=60), clock)
    await manager.recover()
    for agent in ("main", "coder", "patient"):
        await manager.start_new(SCOPE, agent=agent, origin=ANN)
    minutes = {"coder": 30, "patient": 0}
    clock.now += timedelta(minutes=40)
    busy = await manager.sweep(is_busy=lambda _key: True, minutes_of_agents=minutes)
    assert busy.completed == (), "a turn in progress is never idle"
    assert (await manager.sweep(minutes_of_agents=minutes)).completed == (f"{SCOPE}#2",)
    clock.now += timedelta(minutes=40)
    assert (await manager.sweep(minutes_of_agents=minutes)).completed == (SCOPE,)
    await manager.close()


async def test_settings_can_be_replaced_while_running(manager: SessionManager) -> None:
    await start(manager, 3)
    manager.settings = SessionSettings(backlog_limit=2)
    await start(manager)
    assert numbers(manager) == [4, 3]


async def test_a_session_that_cannot_be_written_does_not_stop_a_sweep(directory: Path) -> None:
    path = transcript(directory, 1)
    path.parent.mkdir(parents=True)
    path.write_bytes(encoded([header(version=2)]))
    os.utime(path, (0, 0))
    manager = await SessionManager.open(directory, SessionSettings(idle_minutes=1, ttl_days=0), Clock())
    await manager.recover()
    await start(manager)
    assert (await manager.sweep()).completed == ()
    await manager.close()
