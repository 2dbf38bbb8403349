"""A transcript that disappears while the daemon runs is written again from memory."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.errors import SessionDamaged
from gateway.sessions import SessionManager, SessionStatus, entries
from gateway.sessions.keys import file_name
from tests.sessions.conftest import ANN, SCOPE, OpenManager


def transcript(directory: Path) -> Path:
    return directory / "transcripts" / file_name(SCOPE)


def unlinked(path: Path) -> None:
    path.unlink()


def replaced_by_a_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/null")


def replaced_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def overwritten(path: Path) -> None:
    path.write_bytes(os.urandom(path.stat().st_size // 2))


DAMAGES = [unlinked, replaced_by_a_link, replaced_by_a_folder]


async def talk(manager: SessionManager, *turns: int) -> None:
    await manager.resolve_active(SCOPE, agent="main", origin=ANN)
    for turn in turns:
        await manager.append(
            SCOPE,
            [
                entries.User(content=f"question {turn}", turn=f"t{turn}"),
                entries.Assistant(content=f"answer {turn}", turn=f"t{turn}"),
                entries.TurnEnd(outcome=entries.TurnOutcome.ANSWERED, turn=f"t{turn}"),
            ],
        )


@pytest.mark.parametrize("damage", DAMAGES)
async def test_an_open_transcript_is_restored_whole(
    manager: SessionManager, directory: Path, damage: Callable[[Path], None]
) -> None:
    await talk(manager, 1, 2)
    before = transcript(directory).read_bytes()
    damage(transcript(directory))
    await talk(manager, 3)
    await manager.flush()
    assert transcript(directory).read_bytes().startswith(before)
    assert len(await manager.history(SCOPE)) == 6
    assert (await manager.verify()).is_sound


@pytest.mark.parametrize("damage", [*DAMAGES, overwritten])
async def test_a_closed_transcript_is_restored_whole_from_the_cache(
    manager: SessionManager, open_manager: OpenManager, directory: Path, damage: Callable[[Path], None]
) -> None:
    await talk(manager, 1, 2)
    before = transcript(directory).read_bytes()
    other = await open_manager()
    await other.load(SCOPE)
    damage(transcript(directory))
    await talk(other, 3)
    await other.append(SCOPE, [entries.Title(value="after")])
    assert transcript(directory).read_bytes().startswith(before)
    assert len(await other.history(SCOPE)) == 6


async def test_a_transcript_that_was_overwritten_under_the_daemon_is_set_aside_and_restored(
    manager: SessionManager, directory: Path
) -> None:
    await talk(manager, 1, 2)
    before = transcript(directory).read_bytes()
    overwritten(transcript(directory))
    await talk(manager, 3)
    await manager.flush()
    assert transcript(directory).read_bytes().startswith(before)
    assert transcript(directory).with_name(f"{file_name(SCOPE)}.corrupted").exists()


async def test_only_the_end_is_restored_if_only_the_end_is_known(
    manager: SessionManager, open_manager: OpenManager, directory: Path
) -> None:
    await talk(manager, *range(200))
    await manager.set_title(SCOPE, "A long story")
    other = await open_manager()
    await other.load(SCOPE)
    transcript(directory).unlink()
    with capture_logs() as logs:
        await talk(other, 200)
        await other.flush()
    (restored,) = (entry for entry in logs if entry["event"] == "transcript_restored")
    lost = restored["lost_messages"]
    assert 300 < lost < 400
    sentence = f"Its transcript was removed from the disk. {lost} older messages are lost."
    assert other.take_notice(SCOPE) == sentence
    assert other.take_notice(SCOPE) is None
    (third,) = [await open_manager()]
    assert [(meta.title, meta.messages) for meta in third.list(SCOPE)] == [("A long story", 402 - lost)]
    texts = [line.text for line in await third.lines(SCOPE, 500)]
    assert texts[0] == f"This transcript was removed from the disk. {lost} earlier messages could not be restored."
    assert texts[-1] == "answer 200"
    assert len(await third.history(SCOPE)) == 50


async def test_a_transcript_of_which_nothing_is_known_is_damaged(
    manager: SessionManager, open_manager: OpenManager, directory: Path
) -> None:
    await talk(manager, 1)
    other = await open_manager()
    transcript(directory).unlink()
    with pytest.raises(SessionDamaged, match="is missing from the disk"):
        await other.load(SCOPE)
    assert [meta.status for meta in other.list(SCOPE)] == [SessionStatus.ERROR]
    with pytest.raises(SessionDamaged):
        await other.append(SCOPE, [entries.User(content="hello")])
