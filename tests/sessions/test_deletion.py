"""A deletion is recorded in the spool first. Every later start finishes what the last run left undone."""

import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from config import SessionSettings
from gateway.contract import Outbound
from gateway.errors import Refused
from gateway.sessions import SessionManager
from gateway.sessions import entries as e
from gateway.sessions.keys import file_name
from gateway.spool import AddToOutbox, DeleteSession, DropEntries, Spool
from tests.sessions.conftest import ANN, SCOPE, Clock


class Files:
    """The attachments of sessions, on a disk that may refuse to delete them."""

    def __init__(self) -> None:
        self.removed: list[str] = []
        self.is_refused = False

    async def remove(self, key: str) -> bool:
        if not self.is_refused:
            self.removed.append(key)
        return not self.is_refused


@asynccontextmanager
async def opened(folder: Path, files: Files | None = None) -> AsyncIterator[tuple[SessionManager, Spool]]:
    async with await Spool.open(folder) as spool:
        manager = await SessionManager.open(
            folder / "sessions", SessionSettings(), Clock(), journal=spool, remove_files=(files or Files()).remove
        )
        await manager.recover()
        yield manager, spool
        await manager.close()


async def start_sessions(folder: Path) -> None:
    """Leave two sessions, as after a clean shutdown."""
    async with opened(folder) as (manager, _):
        for _ in range(2):
            session = await manager.start_new(SCOPE, agent="main", origin=ANN)
            await manager.append(session.key, [e.User(content="hello")])


def numbers(manager: SessionManager) -> list[int]:
    return [meta.number for meta in manager.list(SCOPE)]


async def test_a_deletion_that_was_only_committed_is_finished_at_the_next_start(tmp_path: Path) -> None:
    """The process dies after the commit and before it touches a file. The index still lists the session."""
    await start_sessions(tmp_path)
    async with await Spool.open(tmp_path) as spool:
        await spool.commit(DeleteSession(session=SCOPE, scope=SCOPE), DropEntries(session=SCOPE))
    assert (tmp_path / "sessions/transcripts" / file_name(SCOPE)).exists()
    files = Files()
    async with opened(tmp_path, files) as (manager, spool):
        assert numbers(manager) == [2]
        assert not (tmp_path / "sessions/transcripts" / file_name(SCOPE)).exists()
        assert files.removed == [SCOPE]
        assert await spool.deletions() == [SCOPE]
        await manager.flush()
        assert await spool.deletions() == []


async def test_a_deletion_that_the_disk_refuses_is_not_undone_by_a_lost_index(tmp_path: Path) -> None:
    await start_sessions(tmp_path)
    path = tmp_path / "sessions/transcripts" / file_name(SCOPE)
    async with opened(tmp_path) as (manager, spool):
        # A folder in its place cannot be unlinked.
        content = path.read_bytes()
        path.unlink()
        path.mkdir()
        await manager.delete(SCOPE)
        await manager.flush()
        assert await spool.deletions() == [SCOPE]
    path.rmdir()
    path.write_bytes(content)
    (tmp_path / "sessions/index.json").unlink()
    async with opened(tmp_path) as (manager, spool):
        assert numbers(manager) == [2]
        assert not path.exists()
        await manager.flush()
        assert await spool.deletions() == []


async def test_attachments_that_cannot_be_deleted_are_tried_again(tmp_path: Path) -> None:
    await start_sessions(tmp_path)
    files = Files()
    files.is_refused = True
    async with opened(tmp_path, files) as (manager, spool):
        await manager.delete(SCOPE)
        await manager.flush()
        assert await spool.deletions() == [SCOPE]
        assert (await manager.sweep()).undeletable == 1
        files.is_refused = False
        assert (await manager.sweep()).undeletable == 0
        await manager.flush()
        assert await spool.deletions() == []
    assert files.removed == [SCOPE]


async def test_a_flush_that_fails_leaves_the_deletion_open(tmp_path: Path) -> None:
    await start_sessions(tmp_path)
    index = tmp_path / "sessions/index.json"
    async with opened(tmp_path) as (manager, spool):
        await manager.delete(SCOPE)
        index.unlink()
        index.mkdir()
        (index / "file").touch()
        await manager.flush()
        assert await spool.deletions() == [SCOPE], "the old index may still have the title"
        (index / "file").unlink()
        index.rmdir()
        await manager.flush()
        assert await spool.deletions() == []


@pytest.mark.parametrize("is_flushed", [True, False])
async def test_nothing_of_a_deleted_session_is_replayed(tmp_path: Path, *, is_flushed: bool) -> None:
    async with await Spool.open(tmp_path) as spool:
        manager = await SessionManager.open(tmp_path / "sessions", SessionSettings(), Clock(), journal=spool)
        await manager.recover()
        await manager.start_new(SCOPE, agent="main", origin=ANN)
        if is_flushed:
            await manager.flush()
        await manager.append(SCOPE, [e.User(content="hello")])
        await manager.delete(SCOPE)
        manager._store.stop()  # noqa: SLF001 - the process is killed without a flush.
        manager._reader.stop()  # noqa: SLF001 - as above.
    with closing(sqlite3.connect(tmp_path / "spool.db")) as spool_file:
        assert spool_file.execute("SELECT * FROM notes").fetchall() == []
    async with opened(tmp_path) as (manager, _):
        assert numbers(manager) == []
    assert list((tmp_path / "sessions/transcripts").iterdir()) == []


async def import_again(manager: SessionManager) -> None:
    """Delete the first session and import it from its export, as `sessions verify` suggests for a damaged one."""
    lines = [line async for line in manager.export_lines(SCOPE)]
    await manager.delete(SCOPE)

    async def exported() -> AsyncIterator[bytes]:
        for line in lines:
            yield line

    await manager.import_lines(None, exported())


async def test_a_start_after_a_crash_keeps_a_session_that_was_deleted_and_imported_again(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    await start_sessions(tmp_path / "data")
    async with opened(tmp_path / "data") as (manager, _):
        await import_again(manager)
        shutil.copytree(tmp_path / "data", tmp_path / "crashed")
    async with opened(tmp_path / "crashed") as (manager, _):
        assert sorted(numbers(manager)) == [1, 2]
        assert len((await manager.load(SCOPE)).entries) == 3


async def test_a_session_is_not_imported_while_replies_of_a_deleted_one_with_its_key_wait(tmp_path: Path) -> None:
    """The deletion stays recorded until they are sent, and a start would repeat it."""
    await start_sessions(tmp_path)
    async with opened(tmp_path) as (manager, spool):
        reply = AddToOutbox(key="k", turn=None, message=Outbound(address=ANN, text="hello"), at=datetime.now(UTC))
        await spool.commit(reply)
        with pytest.raises(Refused, match="Try again later"):
            await import_again(manager)
        assert numbers(manager) == [2]
