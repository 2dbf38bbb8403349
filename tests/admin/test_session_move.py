"""Moving a session to another scope: everything that belongs to it follows, also after a crash."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from config import Settings
from gateway.admin.archive import open_stores
from gateway.admin.session_move import SessionMover, scope_of
from gateway.contract import Address, Inbound, PeerKind, Sender
from gateway.errors import Refused
from gateway.files.store import FileStore, folder_of
from gateway.memory import MemoryStore, Statement, memory_folder
from gateway.sessions import SessionManager, entries
from gateway.spool import AddReminder, AddToInbox, ReminderContent, SetInboxState, Spool, StartTurn
from gateway.spool.rows import InboxState
from tests.daemon.harness import ask, gateway, settings

OLD = "agent:main:telegram:direct:42"
NEW = "agent:main:main"
ADA = Address(channel="telegram", kind=PeerKind.DIRECT, peer="42")
NOW = datetime(2026, 3, 1, tzinfo=UTC)
MESSAGE = Inbound(address=ADA, sender=Sender(id="42"), event_id="e1", text="hello", sent_at=NOW)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[Settings, SessionManager, Spool, FileStore]]:
    configured = settings(folder)
    async with open_stores(configured) as (manager, spool):
        assert spool is not None
        files = FileStore(folder / "data" / "files", 1_000_000)
        await files.open()
        yield configured, manager, spool, files


async def chunks() -> AsyncIterator[bytes]:
    yield b"a cat"


async def talk(manager: SessionManager, files: FileStore, scope: str = OLD) -> str:
    """Start a session with an attachment and enough entries for a checkpoint. Return its key."""
    meta = await manager.start_new(scope, agent="main", origin=ADA)
    stored = await files.keep(folder_of(meta.key), "cat.png", chunks(), limit=99)
    picture = entries.Attached(name="cat.png", kind="image", ref=stored.ref)
    await manager.append(meta.key, [entries.User(content="look", attachments=(picture,), turn="t0")])
    for number in range(300):
        await manager.append(meta.key, [entries.User(content=f"message {number}", turn=f"t{number}")])
    return meta.key


async def test_a_moved_session_keeps_its_history_its_files_and_its_rows(tmp_path: Path) -> None:
    async with opened(tmp_path) as (configured, manager, spool, files):
        mover = SessionMover(lambda: configured, manager, spool, files)
        key = await talk(manager, files)
        before = [line.text for line in await manager.lines(key, 999)]
        message = AddToInbox(
            turn="t0", inbound=MESSAGE, scope=OLD, session=OLD, number=1, agent="main", at=NOW, is_started=False
        )
        about = ReminderContent(address=ADA, maker=Sender(id="42"), text="tea")
        reminders = [
            AddReminder(id="r1", scope=NEW, due_at=NOW, cron=None, about=about, max_per_scope=9, max_total=9),
            AddReminder(id="r2", scope=OLD, due_at=NOW, cron=None, about=about, max_per_scope=9, max_total=9),
        ]
        await spool.commit(message, StartTurn(turn="t0"), *reminders)
        await spool.commit(SetInboxState(turn="t0", state=InboxState.ANSWERED))
        memory = MemoryStore(memory_folder(tmp_path / "data", OLD))
        memory.add([Statement(text="likes tea")], day="2026-03-01")
        await manager.start_new(NEW, agent="main", origin=ADA)
        moved = await mover.move(key, NEW)
        left = await mover.move_belongings(OLD, NEW)
        assert (moved.key, moved.number, left) == (f"{NEW}#2", 2, [])
        assert [line.text for line in await manager.lines(moved.key, 999)] == before
        users = [entry async for entry in manager.entries(moved.key) if isinstance(entry, entries.User)]
        assert (await files.find(users[0].attachments[0].ref)).path.read_bytes() == b"a cat"
        row = await spool.find_message(ADA, "e1")
        assert row is not None
        assert (row.scope, row.session, row.number) == (NEW, f"{NEW}#2", 2)
        assert MemoryStore(memory_folder(tmp_path / "data", NEW)).read().statements[0].text == "likes tea"
        assert not memory.folder.exists()
        assert [(each.id, each.number) for each in await spool.reminders(NEW)] == [("r1", 1), ("r2", 2)]
        assert manager.list(OLD) == []
        assert manager.active(NEW) == manager.find(NEW), "the active session of the other scope stays the active one"
    async with opened(tmp_path) as (_, manager, _, _):
        assert [meta.number for meta in manager.list(NEW)] == [2, 1]
        assert (await manager.verify()).is_sound
        (tmp_path / "data" / "sessions" / "index.json").unlink()
    async with opened(tmp_path) as (_, manager, _, _):
        assert [meta.number for meta in manager.list(NEW)] == [2, 1], "the headers have the new keys"


class Crash(Exception):
    pass


class CrashingFiles(FileStore):
    """A store on a machine that stops when the files of a session are to be moved."""

    async def move_session(self, old: str, new: str) -> None:  # noqa: ARG002 - the names are those of the store.
        raise Crash


async def test_an_interrupted_move_is_finished_by_the_next_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as (configured, manager, spool, files):
        await talk(manager, files)
        crashing = SessionMover(lambda: configured, manager, spool, CrashingFiles(tmp_path / "data" / "files", 999))
        with pytest.raises(Crash):
            await crashing.move(OLD, NEW)
    async with opened(tmp_path) as (configured, manager, spool, files):
        assert len(manager.list(OLD)) == len(manager.list(NEW)) == 1
        moved = await SessionMover(lambda: configured, manager, spool, files).move(OLD, NEW)
        assert moved.key == NEW
        assert (len(manager.list(OLD)), len(manager.list(NEW))) == (0, 1)
        assert moved.messages == 301
        assert (files.folder(NEW) / "cat.png").exists()


async def test_messages_since_an_interrupted_move_are_moved_with_the_next_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as (configured, manager, spool, files):
        await talk(manager, files)
        crashing = SessionMover(lambda: configured, manager, spool, CrashingFiles(tmp_path / "data" / "files", 999))
        with pytest.raises(Crash):
            await crashing.move(OLD, NEW)
        await manager.append(OLD, [entries.User(content="said after the crash", turn="late")])
        moved = await SessionMover(lambda: configured, manager, spool, files).move(OLD, NEW)
        assert (await manager.lines(moved.key, 1))[0].text == "said after the crash"
        assert moved.messages == 302
        assert [meta.key for meta in manager.list(NEW)] == [moved.key]
        assert manager.list(OLD) == []
        users = [entry async for entry in manager.entries(moved.key) if isinstance(entry, entries.User)]
        assert (await files.find(users[0].attachments[0].ref)).path.read_bytes() == b"a cat"


async def test_a_copy_that_people_have_used_since_an_interrupted_move_is_kept(tmp_path: Path) -> None:
    async with opened(tmp_path) as (configured, manager, spool, files):
        await talk(manager, files)
        crashing = SessionMover(lambda: configured, manager, spool, CrashingFiles(tmp_path / "data" / "files", 999))
        with pytest.raises(Crash):
            await crashing.move(OLD, NEW)
        await manager.append(NEW, [entries.User(content="said in the copy", turn="new")])
        await manager.append(OLD, [entries.User(content="said in the old one", turn="old")])
        moved = await SessionMover(lambda: configured, manager, spool, files).move(OLD, NEW)
        last = {meta.key: (await manager.lines(meta.key, 1))[0].text for meta in manager.list(NEW)}
        assert last == {NEW: "said in the copy", moved.key: "said in the old one"}


async def test_archived_sessions_are_moved_to_the_archive_of_the_other_scope(tmp_path: Path) -> None:
    async with opened(tmp_path) as (configured, manager, spool, files):
        mover = SessionMover(lambda: configured, manager, spool, files)
        for _ in range(2):
            await talk(manager, files)
        assert await manager.prune(OLD, 1) == [OLD]
        for key in (OLD, f"{OLD}#2"):
            await mover.move(key, NEW)
        assert await mover.move_belongings(OLD, NEW) == []
        (archived,) = await manager.archive.list(NEW)
        assert (archived.key, archived.meta.messages) == (NEW, 301)
        assert [meta.key for meta in manager.list(NEW)] == [f"{NEW}#2"]
        assert manager.archived_count(OLD) == 0
        restored = await manager.archive.restore(archived, [])
        assert (await manager.lines(restored.key, 1))[0].text == "message 299"
        assert (files.folder(NEW) / "cat.png").exists()
        assert (await manager.verify()).is_sound


async def test_a_busy_session_is_not_moved(tmp_path: Path) -> None:
    async with opened(tmp_path) as (configured, manager, spool, files):
        key = await talk(manager, files)
        mover = SessionMover(lambda: configured, manager, spool, files, is_busy=lambda each: each == key)
        with pytest.raises(Refused, match="Try again when it is idle"):
            await mover.move(key, NEW)
        assert manager.list(NEW) == []


@pytest.mark.parametrize("text", ["", "main", "agent:main", "agent:main:main#2", "agent::main", "agent:main:a\nb"])
def test_a_scope_has_to_be_written_in_full(text: str) -> None:
    with pytest.raises(Refused, match="is not a scope"):
        scope_of(text)


async def test_a_start_counts_the_sessions_that_a_changed_scope_hides(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        await ask(chat, "hello")
        await ask(chat, "/new")
    with capture_logs() as logs:
        async with gateway(settings(tmp_path, session={"dm_scope": "main"})):
            pass
        async with gateway(settings(tmp_path)):
            pass
    (warning,) = (entry for entry in logs if entry["event"] == "sessions_hidden")
    assert (warning["sessions"], warning["scopes"]) == (2, 1)
    assert "gatehouse sessions move" in warning["hint"]
