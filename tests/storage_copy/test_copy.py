"""A copy has everything, byte by byte, whichever engines it is made between."""

import sqlite3
from pathlib import Path

import pytest

from gateway.admin.archive import open_stores
from gateway.database.schema_check import differences
from gateway.errors import CannotStart, Refused
from gateway.sessions.session import NewSession
from gateway.spool import SetFact
from gateway.spool.copies import TABLES
from gateway.storage_copy.copy import CopyProgress, OnProgress
from tests.sessions.engines import ENGINES
from tests.spool.samples import accept, send, take
from tests.storage_copy.fixtures import NewStorage
from tests.storage_copy.harness import ANN, SCOPE, contents, copy, exports, file_hashes, fill


@pytest.mark.parametrize("target", ENGINES)
@pytest.mark.parametrize("source", ENGINES)
async def test_copy_has_everything(source: str, target: str, new_storage: NewStorage) -> None:
    old, new = new_storage(source), new_storage(target)
    await fill(old)
    before = contents(old)
    assert {table for table in TABLES if not before[table]} <= {"deletions"}, "a copy of nothing proves nothing"
    report = copy(old, new)
    assert contents(new) == before
    assert contents(old) == before
    assert (report.sessions, report.archived, report.resumed, report.left_out) == (4, 2, 0, 0)
    assert await exports(new) == await exports(old)


@pytest.mark.parametrize("engine", ENGINES)
async def test_the_session_of_a_schedule_stays_apart_in_a_copy(engine: str, new_storage: NewStorage) -> None:
    old, new, back = new_storage("files"), new_storage(engine), new_storage("files")
    async with open_stores(old) as (manager, _):
        await manager.start_new(SCOPE, agent="main", origin=ANN)
        await manager.start_new(SCOPE, agent="main", origin=ANN, new=NewSession(is_apart=True))
    copy(old, new)
    copy(new, back)
    for storage in (new, back):
        async with open_stores(storage) as (manager, _):
            assert (await manager.resolve_active(SCOPE, agent="main", origin=ANN)).number == 1
            assert len(manager.list(SCOPE)) == 2
            await manager.delete(SCOPE)
            assert manager.active(SCOPE) is None, "the session of the schedule has become active"


async def test_source_files_are_not_touched(new_storage: NewStorage) -> None:
    old, new = new_storage("files"), new_storage("sqlite")
    await fill(old)
    before = file_hashes(old.gateway.data_dir)
    copy(old, new)
    assert file_hashes(old.gateway.data_dir) == before


async def test_files_are_the_same_after_the_way_to_a_database_and_back(new_storage: NewStorage) -> None:
    old, database, new = new_storage("files"), new_storage("postgresql"), new_storage("files")
    await fill(old)
    copy(old, database)
    copy(database, new)
    transcripts, archive = "sessions/transcripts", "sessions/archive"
    for folder in (transcripts, archive):
        assert file_hashes(new.gateway.data_dir / folder) == file_hashes(old.gateway.data_dir / folder)
    assert await exports(new) == await exports(old)


@pytest.mark.parametrize("engine", ENGINES)
async def test_gateway_goes_on_with_a_copy(engine: str, new_storage: NewStorage) -> None:
    """New rows get ids after those of the copy."""
    old, new = new_storage("files"), new_storage(engine)
    await fill(old)
    copy(old, new)
    async with open_stores(new) as (manager, spool):
        assert spool is not None
        active = manager.active(SCOPE)
        assert active is not None
        assert active.number == 3
        assert manager.next_number(SCOPE) == 5
        await spool.commit(take("new"), accept("new"), send("new"))
        assert (await manager.verify()).is_sound
    rows = contents(new)
    for table, ids in (("seen", [1, 2, 3]), ("inbox", [1, 2, 3]), ("outbox", [1, 2, 3])):
        found = rows[table]
        assert isinstance(found, list)
        assert [row[0] for row in found] == ids


class Killed(Exception):
    pass


def kill_at(step: str, done: int) -> OnProgress:
    def on_progress(progress: CopyProgress) -> None:
        if (progress.step, progress.done) == (step, done):
            raise Killed

    return on_progress


@pytest.mark.parametrize("target", ENGINES)
async def test_interrupted_copy_is_continued(target: str, new_storage: NewStorage) -> None:
    old, new = new_storage("files"), new_storage(target)
    await fill(old)
    with pytest.raises(Killed):
        copy(old, new, kill_at("copy", 3), batch_entries=1)
    with pytest.raises(CannotStart, match="unfinished copy of files:"):
        async with open_stores(new):
            pass
    async with open_stores(old) as (manager, spool):
        assert spool is not None
        await manager.set_title(SCOPE, "changed meanwhile")
        await manager.delete(f"{SCOPE}#3")
        await spool.commit(SetFact(name="new", value="fact"))
    with pytest.raises(Killed):
        copy(old, new, kill_at("verify", 2))
    report = copy(old, new)
    assert report.resumed == 5
    assert contents(new) == contents(old)
    assert await exports(new) == await exports(old)


@pytest.mark.parametrize("target", ENGINES)
async def test_target_with_other_data_is_refused(target: str, new_storage: NewStorage) -> None:
    old, other, new = new_storage("files"), new_storage("files"), new_storage(target)
    await fill(old)
    with pytest.raises(Killed):
        copy(old, new, kill_at("copy", 1))
    with pytest.raises(Refused, match="unfinished copy of"):
        copy(other, new)
    copy(old, new)
    before = contents(new)
    with pytest.raises(Refused, match="already has"):
        copy(old, new)
    assert contents(new) == before


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
async def test_storage_of_a_running_gateway_is_refused(engine: str, new_storage: NewStorage) -> None:
    old, new = new_storage(engine), new_storage("files")
    await fill(old)
    elsewhere = new.model_copy(update={"storage": old.storage})
    async with open_stores(old):
        with pytest.raises(CannotStart, match="in use"):
            copy(elsewhere, new)
        with pytest.raises(CannotStart, match="in use"):
            copy(new, elsewhere)


def transcripts(folder: Path) -> list[Path]:
    return sorted((folder / "sessions/transcripts").glob("*.jsonl"))


async def test_damaged_lines_are_left_out_and_counted(new_storage: NewStorage) -> None:
    old, new = new_storage("files"), new_storage("sqlite")
    await fill(old)
    first, second, *_ = transcripts(old.gateway.data_dir)
    lines = first.read_bytes().splitlines(keepends=True)
    first.write_bytes(b"".join([*lines[:3], b"not JSON\n", *lines[3:], lines[-1], b'{"torn']))
    second.write_bytes(b"no transcript")
    report = copy(old, new)
    assert report.left_out == 3
    assert report.unreadable == (second.name,)
    assert b"".join(lines) in (await exports(new)).values()


async def test_copy_in_postgresql_has_all_indexes(new_storage: NewStorage) -> None:
    """The index of the search is dropped while a copy is written."""
    old, new = new_storage("files"), new_storage("postgresql")
    await fill(old)
    with pytest.raises(Killed):
        copy(old, new, kill_at("verify", 1))
    copy(old, new)
    assert not differences(new.storage)
    async with open_stores(new) as (manager, _):
        assert (await manager.search(manager.list(SCOPE), "question of t1")).hits


async def test_entries_that_are_only_in_the_journal_are_copied(new_storage: NewStorage) -> None:
    old, new = new_storage("files"), new_storage("sqlite")
    await fill(old)
    before = await exports(old)
    first, *_ = transcripts(old.gateway.data_dir)
    lines = first.read_bytes().splitlines(keepends=True)
    key = next(key for key, text in before.items() if text == b"".join(lines))
    first.write_bytes(b"".join(lines[:-3]) + lines[-3][:9])
    with sqlite3.connect(old.gateway.data_dir / "spool.db") as spool:
        spool.executemany(
            "INSERT INTO notes (session, seq, line) VALUES (?, ?, ?)",
            [(key, len(lines) - 3 + number, line) for number, line in enumerate(lines[-3:], 1)],
        )
    spool.close()
    copy(old, new)
    assert await exports(new) == before
