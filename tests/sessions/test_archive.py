"""Pruned and expired sessions go to the archive, come back from it, and are in one place at any time."""

import asyncio
import gzip
import json
import shutil
import stat
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from config import SessionSettings
from gateway.errors import Refused
from gateway.sessions import Leaving, SessionManager, SessionMeta, SessionStatus
from gateway.sessions import entries as e
from gateway.sessions.keys import file_name, session_key
from gateway.sessions.storage.archived_transcript import BLOCK
from gateway.sessions.storage.files import FileStorage
from tests.sessions.conftest import ANN, SCOPE, Clock, OpenManager


def numbers(manager: SessionManager) -> list[int]:
    return [meta.number for meta in manager.list(SCOPE)]


async def archived(manager: SessionManager) -> list[int]:
    return [session.state.number for session in await manager.archive.list(SCOPE)]


async def start(manager: SessionManager, count: int = 1) -> None:
    """Start sessions in which something is said."""
    for _ in range(count):
        session = await manager.start_new(SCOPE, agent="main", origin=ANN)
        await manager.append(session.key, [e.User(content=f"hello {session.number}"), e.Assistant(content="hi")])


async def restore(manager: SessionManager, number: int) -> SessionMeta:
    session = await manager.archive.find(session_key(SCOPE, number))
    assert session is not None
    return await manager.archive.restore(session, await manager.copy_displaced(session))


def files(directory: Path) -> list[Path]:
    return sorted(path for path in (directory / "archive").rglob("*") if path.is_file())


def transcript(directory: Path, number: int) -> Path:
    return directory / "transcripts" / file_name(session_key(SCOPE, number))


@pytest.fixture
def small(manager: SessionManager) -> SessionManager:
    manager.settings = SessionSettings(backlog_limit=2)
    return manager


async def test_a_pruned_session_is_archived_with_every_byte(small: SessionManager, directory: Path) -> None:
    await start(small, 2)
    before = transcript(directory, 1).read_bytes()
    await start(small, 2)
    assert (numbers(small), await archived(small)) == ([4, 3, 2], [1])
    assert not transcript(directory, 1).exists()
    (file,) = files(directory)
    about, *lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    assert b"".join(lines) == before
    assert json.loads(about)["state"]["title"] == "hello 1"


async def test_archived_files_are_private(small: SessionManager, directory: Path) -> None:
    await start(small, 4)
    (file,) = files(directory)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent, file.parent.parent)]
    assert modes == [0o600, 0o700, 0o700]


async def test_empty_sessions_are_deleted_first_and_displace_no_other(small: SessionManager, directory: Path) -> None:
    await start(small, 2)
    for _ in range(5):
        await small.start_new(SCOPE, agent="main", origin=ANN)
    assert (numbers(small), await archived(small)) == ([7, 2, 1], [])
    assert files(directory) == []
    assert len(list((directory / "transcripts").iterdir())) == 3


async def test_a_cleared_session_is_not_empty(small: SessionManager) -> None:
    await start(small)
    await small.clear(SCOPE)
    await start(small, 3)
    assert await archived(small) == [1]


async def test_an_expired_session_is_archived(directory: Path) -> None:
    clock = Clock()
    manager = await SessionManager.open(directory, SessionSettings(ttl_days=30), clock)
    await manager.recover()
    await start(manager, 2)
    await manager.start_new(SCOPE, agent="main", origin=ANN)
    clock.now += timedelta(days=31)
    report = await manager.sweep()
    assert set(report.expired) == {SCOPE, f"{SCOPE}#2", f"{SCOPE}#3"}
    assert (numbers(manager), await archived(manager)) == ([], [2, 1])
    clock.now += timedelta(days=31)
    await manager.sweep()
    assert (await manager.start_new(SCOPE, agent="main", origin=ANN)).number == 4, "no number is used twice"
    await manager.close()


async def test_a_session_that_is_archived_too_long_is_deleted_for_good(directory: Path) -> None:
    clock, removed = Clock(), []

    async def remove_files(key: str) -> bool:
        removed.append(key)
        return True

    settings = SessionSettings(backlog_limit=2, archive_days=10)
    manager = await SessionManager.open(directory, settings, clock, remove_files=remove_files)
    await manager.recover()
    await start(manager, 4)
    assert removed == [], "archived sessions keep their files"
    clock.now += timedelta(days=9)
    await manager.sweep()
    assert await archived(manager) == [1]
    clock.now += timedelta(days=2)
    await manager.sweep(expires=False)
    assert await archived(manager) == [1], "the clock may be wrong"
    await manager.sweep()
    assert (await archived(manager), files(directory), removed) == ([], [], [SCOPE])
    await manager.close()


async def test_a_restored_session_has_its_number_key_and_text(small: SessionManager) -> None:
    await start(small, 4)
    meta = await restore(small, 1)
    assert (meta.key, meta.number, meta.title, meta.messages) == (SCOPE, 1, "hello 1", 2)
    assert [line.text for line in await small.lines(SCOPE, 10)] == ["hello 1", "hi"]
    active = small.active(SCOPE)
    assert active is not None
    assert active.number == 4, "the active session stays the active one"
    await small.append(SCOPE, [e.User(content="I am back")])


async def test_a_restored_session_displaces_the_least_recently_used_one(small: SessionManager) -> None:
    await start(small, 4)
    await restore(small, 1)
    assert (numbers(small), await archived(small)) == ([4, 1], [3, 2])
    await start(small)
    assert (numbers(small), await archived(small)) == ([5, 4, 1], [3, 2]), "it counts as recently used"


async def test_neither_the_restored_nor_the_active_session_is_displaced(manager: SessionManager) -> None:
    manager.settings = SessionSettings(backlog_limit=1)
    await start(manager, 2)
    await manager.start_new(SCOPE, agent="main", origin=ANN)
    await manager.append(f"{SCOPE}#3", [e.User(content="hello 3")])
    assert await archived(manager) == [1]
    await restore(manager, 1)
    assert (numbers(manager), await archived(manager)) == ([3, 1], [2])


async def test_a_session_restored_to_a_scope_without_sessions_becomes_active(small: SessionManager) -> None:
    await start(small, 4)
    for number in (4, 3, 2):
        await small.delete(session_key(SCOPE, number))
    await restore(small, 1)
    active = small.active(SCOPE)
    assert active is not None
    assert active.number == 1


@pytest.mark.parametrize("has_index", [True, False])
async def test_archived_sessions_and_their_numbers_survive_a_rebuilt_index(
    small: SessionManager, open_manager: OpenManager, directory: Path, *, has_index: bool
) -> None:
    await start(small, 4)
    for number in (4, 3, 2):
        await small.delete(session_key(SCOPE, number))
    await restore(small, 1)
    await small.set_title(SCOPE, "kept")
    await start(small, 3)
    await small.delete(f"{SCOPE}#6")
    await small.delete(f"{SCOPE}#7")
    await small.delete(f"{SCOPE}#5")
    assert (numbers(small), await archived(small)) == ([], [1])
    await small.flush()
    if not has_index:
        (directory / "index.json").unlink()
    again = await open_manager()
    assert (numbers(again), await archived(again)) == ([], [1])
    session = await again.start_new(SCOPE, agent="main", origin=ANN)
    assert session.number == (8 if has_index else 2)
    assert session.number not in await archived(again)


async def test_a_crash_between_copy_and_move_leaves_the_session_in_its_list(
    small: SessionManager, open_manager: OpenManager, directory: Path
) -> None:
    await start(small, 3)
    assert await small.copy_surplus(SCOPE) != []
    assert len(files(directory)) == 1
    assert await archived(small) == [], "it has not left its list"
    again = await open_manager()
    assert (numbers(again), await archived(again)) == ([3, 2, 1], [])
    assert files(directory) == []


async def test_a_crash_before_the_transcript_is_deleted_leaves_the_session_in_one_place(
    small: SessionManager, open_manager: OpenManager, directory: Path
) -> None:
    await start(small, 3)
    content = transcript(directory, 1).read_bytes()
    await start(small)
    transcript(directory, 1).write_bytes(content)
    transcript(directory, 1).chmod(0o600)
    again = await open_manager()
    assert (numbers(again), await archived(again)) == ([4, 3, 2, 1], [])
    assert files(directory) == []


async def test_a_crash_during_a_restore_keeps_what_was_said_since(
    small: SessionManager, open_manager: OpenManager, directory: Path, tmp_path: Path
) -> None:
    """The archived copy could not be deleted. The transcript is newer."""
    await start(small, 4)
    (file,) = files(directory)
    shutil.copy(file, tmp_path / "copy")
    await restore(small, 1)
    await small.append(SCOPE, [e.User(content="said since")])
    file.parent.mkdir(exist_ok=True)
    shutil.copy(tmp_path / "copy", file)
    assert 1 not in await archived(small)
    again = await open_manager()
    assert 1 in numbers(again)
    assert [line.text for line in await again.lines(SCOPE, 1)] == ["said since"]
    assert 1 not in await archived(again)


async def test_a_session_that_is_used_after_its_copy_is_not_archived(small: SessionManager) -> None:
    await start(small, 3)
    copies = await small.copy_surplus(SCOPE)
    await small.append(SCOPE, [e.User(content="one more thing")])
    await small.start_new(SCOPE, agent="main", origin=ANN, copies=copies)
    assert (numbers(small), await archived(small)) == ([4, 3, 2, 1], [])
    assert [line.text for line in await small.lines(SCOPE, 1)] == ["one more thing"]


async def test_a_session_that_cannot_be_archived_stays(small: SessionManager, directory: Path) -> None:
    await start(small, 3)
    shutil.rmtree(directory / "archive")
    (directory / "archive").write_bytes(b"")
    await start(small)
    assert numbers(small) == [4, 3, 2, 1]


def damage(change: Callable[[bytes], bytes], directory: Path) -> None:
    (file,) = files(directory)
    file.write_bytes(change(file.read_bytes()))


@pytest.mark.parametrize("cut", [5, 60, -30, -4])
async def test_a_damaged_archived_session_is_refused_reported_and_can_be_deleted(
    small: SessionManager, directory: Path, cut: int
) -> None:
    await start(small, 4)
    damage(lambda content: content[:cut], directory)
    with pytest.raises(Refused, match="can't be read from the archive"):
        await restore(small, 1)
    assert numbers(small) == [4, 3, 2]
    report = await small.verify()
    assert [problem.kind for problem in report.problems] == ["damaged_archive"]
    await small.delete(SCOPE)
    assert files(directory) == []


async def test_a_verification_counts_archived_sessions(small: SessionManager) -> None:
    await start(small, 4)
    report = await small.verify()
    assert (report.is_sound, report.archived) == (True, 1)


async def test_an_archived_session_can_be_exported_and_not_imported_again(
    small: SessionManager, directory: Path
) -> None:
    await start(small, 2)
    before = transcript(directory, 1).read_bytes()
    await start(small, 2)
    exported = b"".join([block async for block in small.export_lines(SCOPE)])
    assert exported == before

    async def lines() -> asyncio.StreamReader:
        reader = asyncio.StreamReader()
        reader.feed_data(exported)
        reader.feed_eof()
        return reader

    with pytest.raises(Refused, match="in the archive"):
        await small.import_lines(None, await lines())


async def test_an_export_is_complete_wherever_the_file_is_divided(small: SessionManager, directory: Path) -> None:
    await start(small, 2)
    before = transcript(directory, 1).read_bytes()
    await start(small, 2)
    (file,) = files(directory)
    about, *_ = gzip.decompress(file.read_bytes()).splitlines()
    # The first block that is read contains the line about the session and nothing else.
    paddings = range(BLOCK - len(about), 0, -1)
    members = (gzip.compress(about + b" " * padding, compresslevel=0) for padding in paddings)
    first = next(member for member in members if len(member) == BLOCK)
    file.write_bytes(first + gzip.compress(before))
    assert b"".join([block async for block in small.archive.lines(SCOPE)]) == before


async def test_nothing_moves_while_a_backup_is_made(small: SessionManager) -> None:
    await start(small, 4)
    async with small.archive.paused():
        await start(small)
        assert await archived(small) == [1]
        with pytest.raises(Refused, match="backup"):
            await restore(small, 1)
    await start(small)
    assert await archived(small) == [3, 2, 1]


async def test_every_session_that_leaves_passes_through_the_hook(directory: Path) -> None:
    clock, left = Clock(), []

    async def leave(meta: SessionMeta, why: Leaving) -> None:
        left.append((meta.number, why))

    settings = SessionSettings(backlog_limit=1, ttl_days=30, idle_minutes=10)
    manager = await SessionManager.open(directory, settings, clock, on_leaving=leave)
    await manager.recover()
    await start(manager, 2)
    await manager.set_status(f"{SCOPE}#2", SessionStatus.COMPLETED)
    await start(manager)
    assert left == [
        (1, Leaving.ROTATED),
        (2, Leaving.CLOSED),
        (1, Leaving.PRUNED),
        (2, Leaving.ROTATED),
    ]
    left.clear()
    clock.now += timedelta(minutes=11)
    await manager.sweep()
    clock.now += timedelta(days=31)
    await manager.sweep()
    assert left == [(3, Leaving.CLOSED), (2, Leaving.EXPIRED), (3, Leaving.EXPIRED)]
    await manager.close()


async def test_an_unfinished_archive_file_is_deleted_at_the_next_start(directory: Path) -> None:
    disk = FileStorage(directory)
    disk.prepare()
    (directory / "archive" / ".archiving-x").write_bytes(b"half")
    disk.prepare()
    assert files(directory) == []


async def test_a_transcript_that_could_not_be_deleted_is_deleted_by_a_sweep(
    small: SessionManager, directory: Path
) -> None:
    await start(small, 3)
    path = transcript(directory, 1)
    copies = await small.copy_surplus(SCOPE)
    path.unlink()
    path.mkdir()  # A folder in its place cannot be unlinked.
    await small.start_new(SCOPE, agent="main", origin=ANN, copies=copies)
    assert await archived(small) == [1]
    path.rmdir()
    path.write_bytes(b"left")
    await small.sweep()
    assert not path.exists()
    assert (await restore(small, 1)).messages == 2
    await small.sweep()
    assert path.exists()


async def test_a_cancelled_caller_leaves_no_transcript_behind(small: SessionManager, directory: Path) -> None:
    await start(small, 3)
    copies = await small.copy_surplus(SCOPE)
    starting = asyncio.create_task(small.start_new(SCOPE, agent="main", origin=ANN, copies=copies))
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await small.sweep()
    assert await archived(small) == ([] if 1 in numbers(small) else [1])
    assert transcript(directory, 1).exists() == (1 in numbers(small))


async def test_a_copy_that_a_restore_has_left_behind_does_not_expire_the_session(
    directory: Path, tmp_path: Path
) -> None:
    clock = Clock()
    manager = await SessionManager.open(directory, SessionSettings(backlog_limit=2, archive_days=10, ttl_days=0), clock)
    await manager.recover()
    await start(manager, 4)
    (file,) = files(directory)
    shutil.copy(file, tmp_path / "copy")
    await restore(manager, 1)
    file.parent.mkdir(exist_ok=True)
    shutil.copy(tmp_path / "copy", file)
    clock.now += timedelta(days=11)
    await manager.sweep()
    assert 1 in numbers(manager)
    await manager.close()
