"""An fsync that fails: the file is not believed again, but built anew from what is known."""

import asyncio
import errno
import os
import stat
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from config import SessionSettings
from gateway.sessions import SessionManager
from gateway.sessions import entries as e
from gateway.sessions.keys import file_name
from gateway.sessions.storage.disk import Disk
from tests.sessions.conftest import ANN, SCOPE, Clock, OpenManager


class Faulty:
    """An fsync that fails, or takes its time, for as long as a test wants it to."""

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
    disk = Disk(directory, fsync=fsync)
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


async def test_a_file_that_could_not_be_synced_is_replaced_by_a_new_one(
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


async def test_what_the_kernel_dropped_is_written_again_from_memory(
    faulty: SessionManager, fsync: Faulty, directory: Path
) -> None:
    """After a failed fsync a page may be clean and gone at once: the file then holds less than was written to it."""
    await faulty.flush()
    durable = transcript(directory).stat().st_size
    await faulty.append(SCOPE, [e.User(content="dropped")])
    fsync.fails_on_files = True
    await faulty.flush()
    os.truncate(transcript(directory), durable)
    fsync.fails_on_files = False
    await faulty.flush()
    assert await said(faulty) == ["before", "dropped"]


async def test_a_name_that_could_not_be_synced_is_given_anew(
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


async def test_a_slow_fsync_keeps_nobody_from_writing_or_reading(faulty: SessionManager, fsync: Faulty) -> None:
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
