"""A failed fsync: the file is not trusted again, but rebuilt."""

import asyncio
import errno
import os
import stat
import threading
from collections.abc import AsyncIterator, Collection, Mapping
from pathlib import Path

import pytest

from config import SessionSettings
from gateway.sessions import SessionManager
from gateway.sessions import entries as e
from gateway.sessions.keys import file_name
from gateway.sessions.storage.files import FileStorage
from gateway.spool import OnCommitted, Operation
from tests.disks import files_at_most
from tests.sessions.conftest import ANN, SCOPE, Clock, OpenManager

OTHER = "agent:main:web:direct:bob"


class Faulty:
    """An fsync that fails or blocks for as long as a test wants."""

    def __init__(self) -> None:
        self.fails_on_files = False
        self.fails_on_folders = False
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.has_begun = threading.Event()

    def __call__(self, descriptor: int) -> None:
        self.has_begun.set()
        self.goes_on.wait()
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        if self.fails_on_folders if is_folder else self.fails_on_files:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.fsync(descriptor)


@pytest.fixture
def fsync() -> Faulty:
    return Faulty()


@pytest.fixture
async def faulty(directory: Path, fsync: Faulty) -> AsyncIterator[SessionManager]:
    disk = FileStorage(directory, fsync=fsync)
    await asyncio.to_thread(disk.prepare)
    manager = SessionManager(disk, SessionSettings(), Clock())
    await manager.recover()
    await manager.resolve_active(SCOPE, agent="main", origin=ANN)
    await manager.append(SCOPE, [e.User(content="before")])
    yield manager
    await manager.close()


def transcript(directory: Path) -> Path:
    return directory / "transcripts" / file_name(SCOPE)


async def said(manager: SessionManager) -> list[str]:
    return [entry.content async for entry in manager.entries(SCOPE) if isinstance(entry, e.User)]


async def test_a_file_whose_fsync_failed_is_rebuilt(
    faulty: SessionManager, fsync: Faulty, directory: Path, open_manager: OpenManager
) -> None:
    await faulty.flush()
    old = transcript(directory).stat().st_ino
    await faulty.append(SCOPE, [e.User(content="not durable")])
    fsync.fails_on_files = True
    await faulty.flush()
    assert faulty.trouble is not None
    assert faulty.flush_delay(30.0) == 1.0
    await faulty.flush()
    assert faulty.flush_delay(30.0) == 2.0
    await faulty.append(SCOPE, [e.User(content="meanwhile")])
    assert await said(faulty) == ["before", "not durable", "meanwhile"]
    fsync.fails_on_files = False
    await faulty.flush()
    assert faulty.trouble is None
    assert faulty.flush_delay(30.0) == 30.0
    assert transcript(directory).stat().st_ino != old
    await faulty.append(SCOPE, [e.User(content="after")])
    assert await said(await open_manager()) == ["before", "not durable", "meanwhile", "after"]
    assert not list((directory / "transcripts").glob(".*"))
    assert stat.S_IMODE(transcript(directory).stat().st_mode) == 0o600


async def test_pages_dropped_by_the_kernel_are_written_again_from_memory(
    faulty: SessionManager, fsync: Faulty, directory: Path
) -> None:
    """After a failed fsync the kernel may drop a page. Then the file has less than was written to it."""
    await faulty.flush()
    durable = transcript(directory).stat().st_size
    await faulty.append(SCOPE, [e.User(content="dropped")])
    fsync.fails_on_files = True
    await faulty.flush()
    os.truncate(transcript(directory), durable)
    fsync.fails_on_files = False
    await faulty.flush()
    assert await said(faulty) == ["before", "dropped"]


async def test_a_file_is_rebuilt_when_the_fsync_of_its_folder_fails(
    faulty: SessionManager, fsync: Faulty, directory: Path, open_manager: OpenManager
) -> None:
    old = transcript(directory).stat().st_ino
    fsync.fails_on_folders = True
    await faulty.flush()
    assert faulty.trouble is not None
    fsync.fails_on_folders = False
    await faulty.flush()
    assert faulty.trouble is None
    assert transcript(directory).stat().st_ino != old
    assert await said(await open_manager()) == ["before"]


async def test_a_session_deleted_while_it_cannot_be_synced_stays_deleted(
    faulty: SessionManager, fsync: Faulty, directory: Path
) -> None:
    fsync.fails_on_files = True
    await faulty.flush()
    await faulty.delete(SCOPE)
    fsync.fails_on_files = False
    await faulty.flush()
    assert not transcript(directory).exists()
    assert faulty.trouble is None


async def test_a_slow_fsync_delays_neither_appends_nor_reads(faulty: SessionManager, fsync: Faulty) -> None:
    fsync.goes_on.clear()
    fsync.has_begun.clear()
    async with asyncio.TaskGroup() as tasks:
        flushing = tasks.create_task(faulty.flush(), name="flush")
        await asyncio.to_thread(fsync.has_begun.wait)
        async with asyncio.timeout(60):
            await faulty.append(SCOPE, [e.User(content="meanwhile")])
            await faulty.start_new(SCOPE, agent="main", origin=ANN)
            assert await said(faulty) == ["before", "meanwhile"]
        assert not flushing.done()
        fsync.goes_on.set()
    assert faulty.trouble is None


class InstantJournal:
    """Commits at once, and keeps the highest seq that was dropped of each session."""

    def __init__(self) -> None:
        self.dropped: dict[str, int] = {}

    async def commit(
        self,
        *_operations: Operation,
        scope: str | None = None,  # noqa: ARG002 - there is one gateway only.
        on_done: OnCommitted | None = None,
    ) -> None:
        if on_done is not None:
            on_done(None)

    async def unflushed_entries(self) -> AsyncIterator[tuple[str, list[tuple[int, bytes]]]]:
        nothing: list[tuple[str, list[tuple[int, bytes]]]] = []
        for entries in nothing:
            yield entries

    async def drop_entries(self, upto: Mapping[str, int]) -> None:
        self.dropped.update(upto)

    async def deletions(self) -> list[str]:
        return []

    async def purge(self, sessions: Collection[str]) -> list[str]:
        return list(sessions)


async def test_lines_written_too_late_for_the_fsync_stay_in_the_journal(directory: Path, fsync: Faulty) -> None:
    """The disk takes waiting lines again while a flush is running, which does not fsync their file any more."""
    disk = FileStorage(directory, fsync=fsync)
    await asyncio.to_thread(disk.prepare)
    journal = InstantJournal()
    manager = SessionManager(disk, SessionSettings(), Clock(), journal=journal)
    await manager.recover()
    for scope in (SCOPE, OTHER):
        await manager.start_new(scope, agent="main", origin=ANN)
    await manager.append(SCOPE, [e.User(content="x" * 2000)])
    await manager.flush()
    journal.dropped.clear()
    with files_at_most(transcript(directory).stat().st_size + 40):
        (waiting,) = await manager.append(SCOPE, [e.User(content="waits for the disk")])
        await manager.append(OTHER, [e.User(content="is written")])
        fsync.has_begun.clear()
        fsync.goes_on.clear()
        flushing = asyncio.create_task(manager.flush())
        assert await asyncio.to_thread(fsync.has_begun.wait, 60)
        assert manager.trouble is not None
    (late,) = await manager.append(SCOPE, [e.User(content="comes with room")])
    fsync.goes_on.set()
    await flushing
    assert manager.trouble is None
    assert SCOPE not in journal.dropped
    assert manager.flush_delay(30.0) == 1.0
    await manager.flush()
    assert journal.dropped[SCOPE] == late.seq == waiting.seq + 1
    await manager.close()
