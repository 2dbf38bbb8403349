"""After a clean shutdown the index is trusted without reading transcripts; otherwise it is not."""

from collections.abc import Callable
from pathlib import Path

import pytest

from config import SessionSettings
from gateway.sessions import RecoveryReport, SessionManager, SessionMeta
from gateway.sessions import entries as e
from gateway.sessions.keys import file_name
from gateway.sessions.storage.codec import encode, stamp
from tests.sessions.conftest import ANN, SCOPE, Clock

BOB = "agent:main:web:direct:bob"


async def opened(directory: Path) -> tuple[SessionManager, RecoveryReport]:
    manager = await SessionManager.open(directory, SessionSettings(), Clock())
    return manager, await manager.recover()


async def ended(directory: Path) -> list[SessionMeta]:
    """Write two scopes and shut down cleanly. Return Ann's sessions."""
    manager, _ = await opened(directory)
    for scope in (SCOPE, SCOPE, BOB):
        session = await manager.start_new(scope, agent="main", origin=ANN)
        await manager.append(session.key, [e.User(content="hi")])
    await manager.close()
    return manager.list(SCOPE)


def transcript(directory: Path, key: str = SCOPE) -> Path:
    return directory / "transcripts" / file_name(key)


async def test_after_a_clean_shutdown_the_next_start_reads_no_transcript(directory: Path) -> None:
    listed = await ended(directory)
    # A file that somebody has made unreadable would be noticed, if it were looked at.
    content = transcript(directory).read_bytes()
    transcript(directory).write_bytes(b"x")
    manager, report = await opened(directory)
    assert report == RecoveryReport(scopes=2, sessions=3)
    assert manager.list(SCOPE) == listed
    transcript(directory).write_bytes(content)
    assert [line.text for line in await manager.lines(SCOPE, 5)] == ["hi"]
    await manager.close()


async def test_a_kill_after_the_first_change_is_not_a_clean_shutdown(directory: Path) -> None:
    await ended(directory)
    killed, _ = await opened(directory)
    await killed.append(SCOPE, [e.User(content="more")])
    again, report = await opened(directory)
    assert report.repaired == 1
    assert again.list(SCOPE) == killed.list(SCOPE)
    await again.close()
    await killed.close()


async def test_a_kill_before_any_change_counts_as_a_clean_shutdown(directory: Path) -> None:
    await ended(directory)
    killed, _ = await opened(directory)
    await killed.lines(SCOPE, 1)
    again, report = await opened(directory)
    assert report == RecoveryReport(scopes=2, sessions=3)
    await again.close()
    await killed.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda directory: transcript(directory, BOB).unlink(),
        lambda directory: transcript(directory, BOB).rename(directory / "transcripts" / "other.txt"),
        lambda directory: (directory / "index.json").unlink(),
        lambda directory: (directory / "index.json").write_bytes(b'{"version":1,"scopes":{}}'),
        lambda directory: (directory / "index.clean").write_bytes(b"garbage"),
        lambda directory: (directory / "index.clean").unlink(),
    ],
    ids=["transcript deleted", "transcript renamed", "no index", "other index", "bad mark", "no mark"],
)
async def test_every_change_between_two_runs_is_noticed(directory: Path, change: Callable[[Path], object]) -> None:
    listed = await ended(directory)
    change(directory)
    manager, _ = await opened(directory)
    assert manager.list(SCOPE) == listed
    assert bool(manager.list(BOB)) == transcript(directory, BOB).exists()
    await manager.close()
    again, report = await opened(directory)
    assert (report.dropped, report.adopted, report.rebuilt) == (0, 0, False)
    await again.close()


async def test_a_transcript_changed_in_place_corrects_the_state_when_it_is_loaded(directory: Path) -> None:
    await ended(directory)
    more = encode(stamp(e.User(content="by hand"), seq=4, now=Clock()())[0])
    with transcript(directory).open("ab") as file:
        file.write(more + b'{"torn')
    manager, _ = await opened(directory)
    assert [line.text for line in await manager.lines(SCOPE, 5)] == ["hi", "by hand"]
    assert manager.list(SCOPE)[1].messages == 2
    assert (await manager.append(SCOPE, [e.User(content="next")]))[0].seq == 5
    await manager.close()


async def test_files_that_cannot_be_deleted_are_retried_at_the_next_start(directory: Path) -> None:
    await ended(directory)
    manager, _ = await opened(directory)
    path = transcript(directory)
    path.unlink()
    path.mkdir()  # What cannot be unlinked, even by root.
    await manager.delete(SCOPE)
    assert (await manager.sweep()).undeletable == 1
    await manager.close()
    path.rmdir()
    path.write_bytes(b"back again")
    again, report = await opened(directory)
    assert report.adopted == 0
    assert [meta.number for meta in again.list(SCOPE)] == [2]
    assert not path.exists()
    await again.close()
