from collections.abc import Callable
from pathlib import Path

import pytest

from config import SessionSettings
from gateway.errors import Refused
from gateway.sessions import RecoveryReport, SessionManager, SessionMeta
from gateway.sessions import entries as e
from gateway.sessions.keys import file_name
from tests.sessions.conftest import ANN, SCOPE, Clock, OpenManager
from tests.sessions.samples import encoded, header

BOB = "agent:main:web:direct:bob"


def transcript(directory: Path, key: str) -> Path:
    return directory / "transcripts" / file_name(key)


async def talk(manager: SessionManager) -> None:
    """Write three sessions of Ann, with the second one active, and one of Bob."""
    for number in range(1, 4):
        key = (await manager.start_new(SCOPE, agent="main", origin=ANN)).key
        await manager.append(key, [e.User(content=f"question {number}"), e.Assistant(content="answer")])
    await manager.resume(SCOPE, 2)
    await manager.resolve_active(BOB, agent="main", origin=ANN)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*"))


def seen(manager: SessionManager) -> tuple[list[SessionMeta], SessionMeta | None, list[SessionMeta]]:
    return manager.list(SCOPE), manager.active(SCOPE), manager.list(BOB)


async def reopened(directory: Path) -> tuple[SessionManager, RecoveryReport]:
    manager = await SessionManager.open(directory, SessionSettings(), Clock())
    return manager, await manager.recover()


async def test_a_kill_before_the_first_flush_loses_nothing(manager: SessionManager, open_manager: OpenManager) -> None:
    await talk(manager)
    assert seen(await open_manager()) == seen(manager)


async def test_a_kill_after_a_flush_loses_nothing(manager: SessionManager, directory: Path) -> None:
    await talk(manager)
    await manager.flush()
    await manager.append(SCOPE, [e.User(content="later")])
    await manager.resume(SCOPE, 3)
    await manager.start_new(BOB, agent="main", origin=ANN)
    again, report = await reopened(directory)
    assert seen(again) == seen(manager)
    assert (report.repaired, report.adopted, report.rebuilt) == (2, 1, False)
    await again.close()


async def test_a_start_after_a_clean_shutdown_repairs_and_writes_nothing(
    manager: SessionManager, directory: Path
) -> None:
    await talk(manager)
    await manager.flush()
    written = (directory / "index.json").stat().st_ino
    again, report = await reopened(directory)
    assert report == RecoveryReport(
        scopes=2,
        sessions=4,
        adopted=0,
        dropped=0,
        repaired=0,
        torn=0,
        corrupted=0,
        newer=0,
        rebuilt=False,
        lost=(),
    )
    await again.close()
    assert (directory / "index.json").stat().st_ino == written


@pytest.mark.parametrize(
    "spoil",
    [
        Path.unlink,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"garbage"),
        lambda path: path.write_bytes(path.read_bytes()[:-20]),
        lambda path: path.write_bytes(b'{"version":1,"scopes":{}}'),
        lambda path: path.write_bytes(path.read_bytes().replace(b'"version":1', b'"version":9')),
        lambda path: (path.unlink(), path.mkdir()),
    ],
    ids=["deleted", "empty", "garbage", "truncated", "of nothing", "of a newer version", "a folder"],
)
async def test_a_damaged_index_changes_nothing(
    manager: SessionManager, open_manager: OpenManager, directory: Path, spoil: Callable[[Path], object]
) -> None:
    await talk(manager)
    await manager.flush()
    spoil(directory / "index.json")
    again = await open_manager()
    assert seen(again) == seen(manager)
    assert (await again.start_new(SCOPE, agent="main", origin=ANN)).number == 4
    await again.flush()
    assert (directory / "index.json").is_file()


async def test_an_outdated_index_changes_nothing(
    manager: SessionManager, open_manager: OpenManager, directory: Path
) -> None:
    await manager.resolve_active(SCOPE, agent="main", origin=ANN)
    await manager.flush()
    old = (directory / "index.json").read_bytes()
    await talk(manager)
    await manager.flush()
    (directory / "index.json").write_bytes(old)
    assert seen(await open_manager()) == seen(manager)


async def test_a_session_without_a_file_is_dropped_and_its_number_not_used_again(
    manager: SessionManager, directory: Path
) -> None:
    await talk(manager)
    await manager.flush()
    transcript(directory, f"{SCOPE}#3").unlink()
    again, report = await reopened(directory)
    assert report.dropped == 1
    assert [meta.number for meta in again.list(SCOPE)] == [2, 1]
    assert (await again.start_new(SCOPE, agent="main", origin=ANN)).number == 4
    await again.close()


async def test_no_session_is_active_if_the_transcript_of_the_active_one_is_missing(
    manager: SessionManager, open_manager: OpenManager, directory: Path
) -> None:
    """The next message must not continue an older conversation without a word."""
    await talk(manager)
    await manager.flush()
    transcript(directory, f"{SCOPE}#2").unlink()
    again = await open_manager()
    assert again.active(SCOPE) is None
    assert again.lost == {SCOPE: 2}


async def test_a_torn_tail_is_cut_off_and_counted(manager: SessionManager, directory: Path) -> None:
    await talk(manager)
    await manager.flush()
    with transcript(directory, SCOPE).open("ab") as file:
        file.write(b'{"type":"user","se')
    again, report = await reopened(directory)
    assert (report.torn, report.repaired) == (1, 1)
    assert seen(again) == seen(manager)
    await again.close()


async def test_a_corrupted_session_is_reported_and_affects_no_other(manager: SessionManager, directory: Path) -> None:
    await talk(manager)
    await manager.flush()
    path = transcript(directory, f"{SCOPE}#2")
    path.write_bytes(b"\0" * 100)
    again, report = await reopened(directory)
    assert (report.corrupted, report.lost) == (1, (f"{SCOPE}#2",))
    assert path.with_name(f"{path.name}.corrupted").read_bytes() == b"\0" * 100
    assert [meta.number for meta in again.list(SCOPE)] == [3, 1]
    assert (await again.resolve_active(SCOPE, agent="main", origin=ANN)).number == 4
    assert again.list(BOB) == manager.list(BOB)
    await again.close()


async def test_the_number_of_a_lost_only_session_is_not_reused(
    manager: SessionManager, open_manager: OpenManager, directory: Path
) -> None:
    await talk(manager)
    await manager.flush()
    transcript(directory, BOB).write_bytes(b"nonsense")
    again = await open_manager()
    assert again.list(BOB) == []
    assert (await again.resolve_active(BOB, agent="main", origin=ANN)).number == 2


async def test_a_repeated_recovery_finds_the_same_and_leaves_no_files(
    manager: SessionManager, open_manager: OpenManager, directory: Path
) -> None:
    await talk(manager)
    transcript(directory, SCOPE).write_bytes(transcript(directory, SCOPE).read_bytes()[:-7])
    first = seen(await open_manager())
    files = names(directory)
    for _ in range(3):
        assert seen(await open_manager()) == first
        assert names(directory) == files


async def test_the_temporary_index_of_a_killed_daemon_is_removed(
    manager: SessionManager, open_manager: OpenManager, directory: Path
) -> None:
    await manager.flush()
    (directory / ".index.json.k2j4").write_bytes(b"half")
    (directory / ".index.clean.k2j4").write_bytes(b"half")
    await open_manager()
    assert not [name for name in names(directory.parent) if name.startswith(".")]


async def test_a_newer_transcript_is_listed_refused_and_left_untouched(directory: Path) -> None:
    path = transcript(directory, SCOPE)
    path.parent.mkdir(parents=True)
    content = encoded([header(version=2), e.User(content="from the future")])
    path.write_bytes(content)
    manager, report = await reopened(directory)
    assert report.newer == 1
    assert [meta.number for meta in manager.list(SCOPE)] == [1]
    for attempt in (manager.load(SCOPE), manager.append(SCOPE, [e.User(content="hi")]), manager.resume(SCOPE, 1)):
        with pytest.raises(Refused, match="newer Gatehouse"):
            await attempt
    assert path.read_bytes() == content
    assert (await manager.start_new(SCOPE, agent="main", origin=ANN)).number == 2
    await manager.close()


async def test_other_files_in_the_folder_are_left_alone(
    manager: SessionManager, open_manager: OpenManager, directory: Path
) -> None:
    await talk(manager)
    note = directory / "transcripts" / "README.txt"
    note.write_text("hands off")
    assert seen(await open_manager()) == seen(manager)
    assert note.read_text() == "hands off"


async def test_a_damaged_number_does_not_cause_a_reused_number(
    manager: SessionManager, open_manager: OpenManager, directory: Path
) -> None:
    await talk(manager)
    path = transcript(directory, SCOPE)
    path.write_bytes(path.read_bytes().replace(b'"seq":3', b'"seq":9'))
    again = await open_manager()
    appended = await again.append(SCOPE, [e.User(content="next")])
    assert appended[0].seq == 10
