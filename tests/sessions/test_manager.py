import asyncio
import json
import os
import stat
from pathlib import Path

import pytest

from config import SessionSettings
from gateway.conversation import AssistantMessage, UserMessage
from gateway.errors import CannotStart, Refused, SessionDamaged
from gateway.sessions import Session, SessionManager, SessionStatus
from gateway.sessions import entries as e
from gateway.sessions.keys import file_name
from tests.sessions.conftest import ANN, SCOPE, Clock, OpenManager

BOB = "agent:main:web:direct:bob"


async def begin(manager: SessionManager, scope: str = SCOPE) -> str:
    return (await manager.resolve_active(scope, agent="main", origin=ANN)).key


def modes(directory: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in [directory, *directory.rglob("*")]}


def said(session: Session) -> list[str]:
    return [entry.content for entry in session.entries if isinstance(entry, e.User | e.Assistant)]


async def test_reading_calls_create_no_session(manager: SessionManager) -> None:
    assert manager.active(SCOPE) is None
    assert manager.list(SCOPE) == []


async def test_the_first_session_has_the_key_of_its_scope(manager: SessionManager) -> None:
    first = await manager.resolve_active(SCOPE, agent="main", origin=ANN)
    assert (first.key, first.number, first.title, first.messages) == (SCOPE, 1, "", 0)
    assert manager.active(SCOPE) == first
    assert await manager.resolve_active(SCOPE, agent="main", origin=ANN) == first


async def test_new_sessions_are_numbered_and_listed_newest_first(manager: SessionManager) -> None:
    await begin(manager)
    second = await manager.start_new(SCOPE, agent="main", origin=ANN, title="Trip to Lisbon")
    await manager.start_new(SCOPE, agent="main", origin=ANN)
    assert (second.key, second.title) == (f"{SCOPE}#2", "Trip to Lisbon")
    assert [meta.number for meta in manager.list(SCOPE)] == [3, 2, 1]


async def test_scopes_are_isolated(manager: SessionManager) -> None:
    await begin(manager)
    await begin(manager, BOB)
    await manager.start_new(BOB, agent="main", origin=ANN)
    assert [meta.key for meta in manager.list(SCOPE)] == [SCOPE]
    with pytest.raises(Refused):
        await manager.resume(SCOPE, 2)


async def test_entries_get_consecutive_seqs(manager: SessionManager) -> None:
    key = await begin(manager)
    appended = await manager.append(key, [e.User(content="hi", turn="t1"), e.Assistant(content="hello", turn="t1")])
    assert [entry.seq for entry in appended] == [3, 4]
    assert (await manager.load(key)).entries[-2:] == tuple(appended)


async def test_messages_change_the_listing(manager: SessionManager) -> None:
    key = await begin(manager)
    await manager.append(key, [e.User(content="Fix the\nrouter"), e.Assistant(content="Done.")])
    meta = manager.list(SCOPE)[0]
    assert (meta.title, meta.messages) == ("Fix the router", 2)
    assert meta.updated_at > meta.created_at


async def test_history_and_lines_come_from_the_transcript(manager: SessionManager) -> None:
    key = await begin(manager)
    await manager.append(key, [e.User(content="hi"), e.Assistant(content="hello")])
    assert await manager.history(key) == [UserMessage(text="hi"), AssistantMessage(text="hello")]
    assert [(line.role, line.text) for line in await manager.lines(key, 5)] == [("user", "hi"), ("assistant", "hello")]


async def test_context_messages_limits_the_history(directory: Path) -> None:
    manager = await SessionManager.open(directory, SessionSettings(context_messages=2), Clock())
    await manager.recover()
    key = await begin(manager)
    await manager.append(key, [e.User(content=text) for text in "abcd"])
    assert await manager.history(key) == [UserMessage(text="c"), UserMessage(text="d")]
    await manager.close()


async def test_resuming_makes_an_old_session_active_again(manager: SessionManager) -> None:
    await begin(manager)
    await manager.start_new(SCOPE, agent="main", origin=ANN)
    assert (await manager.resume(SCOPE, 1)).number == 1
    assert await begin(manager) == SCOPE
    assert [meta.number for meta in manager.list(SCOPE)] == [2, 1]


async def test_resuming_the_active_session_writes_nothing(manager: SessionManager) -> None:
    key = await begin(manager)
    before = await manager.load(key)
    await manager.resume(SCOPE, 1)
    assert await manager.load(key) == before


@pytest.mark.parametrize("number", [7, 0, -1])
async def test_resuming_an_unknown_session_is_refused(manager: SessionManager, number: int) -> None:
    await begin(manager)
    with pytest.raises(Refused, match=f"There is no session {number} here. /session list shows your sessions."):
        await manager.resume(SCOPE, number)


@pytest.mark.parametrize("status", [SessionStatus.COMPLETED, SessionStatus.CANCELLED, SessionStatus.ERROR])
async def test_a_message_to_a_closed_session_starts_a_new_one(manager: SessionManager, status: SessionStatus) -> None:
    key = await begin(manager)
    await manager.append(key, [e.Status(value=status)])
    assert await begin(manager) == f"{SCOPE}#2"


async def test_resuming_opens_a_completed_session_again(manager: SessionManager) -> None:
    key = await begin(manager)
    await manager.append(key, [e.Status(value=SessionStatus.COMPLETED)])
    await begin(manager)
    assert (await manager.resume(SCOPE, 1)).status is SessionStatus.ACTIVE
    assert await begin(manager) == key


async def test_a_session_in_error_can_be_read_and_is_not_written_to(manager: SessionManager) -> None:
    key = await begin(manager)
    await manager.append(key, [e.Status(value=SessionStatus.ERROR)])
    assert (await manager.resume(SCOPE, 1)).status is SessionStatus.ERROR
    assert await begin(manager) == f"{SCOPE}#2"


async def test_fifty_tasks_lose_nothing_and_keep_their_order(
    manager: SessionManager, open_manager: OpenManager
) -> None:
    key = await begin(manager)

    async def talk(name: int) -> None:
        for number in range(10):
            await manager.append(key, [e.User(content=f"{name} {number}", sender=str(name))])

    async with asyncio.TaskGroup() as tasks:
        for name in range(50):
            tasks.create_task(talk(name), name=f"talk:{name}")
    for opened in (manager, await open_manager()):
        entries = [entry async for entry in opened.entries(key)]
        assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
        for name in range(50):
            own = [entry.content for entry in entries if isinstance(entry, e.User) and entry.sender == str(name)]
            assert own == [f"{name} {number}" for number in range(10)]


@pytest.mark.files_only  # Without a journal, memory changes at once.
async def test_concurrent_first_messages_start_one_session(manager: SessionManager) -> None:
    keys = await asyncio.gather(*(begin(manager) for _ in range(20)))
    assert set(keys) == {SCOPE}
    assert len(manager.list(SCOPE)) == 1


@pytest.mark.files_only  # Without a journal, memory changes at once.
async def test_entries_appended_during_a_load_are_included(manager: SessionManager, open_manager: OpenManager) -> None:
    key = await begin(manager)
    await manager.append(key, [e.User(content="before")])
    cold = await open_manager()
    async with asyncio.TaskGroup() as tasks:
        loads = [tasks.create_task(cold.load(key), name="load")]
        tasks.create_task(cold.append(key, [e.User(content="during")]), name="append")
        loads.append(tasks.create_task(cold.load(key), name="load again"))
    assert [said(load.result()) for load in loads] == [["before", "during"]] * 2
    assert said(await cold.load(key)) == ["before", "during"]


@pytest.mark.files_only  # Without a journal, memory changes at once.
async def test_a_cancelled_append_is_still_written(manager: SessionManager, open_manager: OpenManager) -> None:
    key = await begin(manager)
    task = asyncio.create_task(manager.append(key, [e.User(content="hi")]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert said(await manager.load(key)) == ["hi"]
    await manager.flush()
    assert said(await (await open_manager()).load(key)) == ["hi"]


async def test_a_flush_writes_the_index_and_only_when_it_has_changed(manager: SessionManager, directory: Path) -> None:
    await begin(manager)
    await manager.flush()
    index = directory / "index.json"
    assert list(json.loads(index.read_bytes())["scopes"]) == [SCOPE]
    written = index.stat().st_ino
    await manager.flush()
    assert index.stat().st_ino == written


async def test_all_session_files_are_private_under_any_umask(directory: Path) -> None:
    before = os.umask(0)
    try:
        manager = await SessionManager.open(directory, SessionSettings(), Clock())
        await manager.recover()
        await begin(manager)
        await manager.close()
    finally:
        os.umask(before)
    assert modes(directory) == {
        "sessions": 0o700,
        "archive": 0o700,
        "transcripts": 0o700,
        file_name(SCOPE): 0o600,
        "index.json": 0o600,
        "index.clean": 0o600,
    }


async def test_a_folder_open_to_others_is_closed(directory: Path) -> None:
    directory.mkdir(mode=0o755)  # noqa: ASYNC240 - a test has the loop for itself.
    manager = await SessionManager.open(directory, SessionSettings(), Clock())
    await manager.close()
    assert modes(directory) == {"sessions": 0o700, "archive": 0o700, "transcripts": 0o700}


async def test_a_folder_that_cannot_be_created_is_reported_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotStart, match=r"Can't use .*file: .*Move it elsewhere"):
        await SessionManager.open(tmp_path / "file" / "sessions", SessionSettings(), Clock())


async def test_nothing_starts_before_recovery(directory: Path) -> None:
    manager = await SessionManager.open(directory, SessionSettings(), Clock())
    with pytest.raises(RuntimeError, match="recover"):
        await begin(manager)
    await manager.close()
    assert not (directory / "index.json").exists()


async def test_a_missing_transcript_ends_its_session_and_the_user_is_told(
    manager: SessionManager, open_manager: OpenManager, directory: Path
) -> None:
    key = await begin(manager)
    other = await open_manager()
    (directory / "transcripts" / file_name(key)).unlink()
    with pytest.raises(SessionDamaged, match="session 1 is missing"):
        await other.append(key, [e.User(content="hi")])
    assert [meta.status for meta in other.list(SCOPE)] == [SessionStatus.ERROR]
    assert await begin(other) == f"{SCOPE}#2"


async def test_an_unreadable_transcript_is_set_aside_and_the_user_is_told(
    manager: SessionManager, open_manager: OpenManager, directory: Path
) -> None:
    key = await begin(manager)
    await manager.flush()
    other = await open_manager()
    path = directory / "transcripts" / file_name(key)
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(Refused, match="is damaged and was set aside"):
        await other.load(key)
    assert path.with_name(f"{path.name}.corrupted").exists()
    assert await begin(other) == f"{SCOPE}#2"


async def test_loading_an_unknown_session_is_refused(manager: SessionManager) -> None:
    with pytest.raises(Refused):
        await manager.load(SCOPE)
    with pytest.raises(Refused):
        await manager.append(SCOPE, [e.User(content="hi")])
