"""The search index of the files engine: a cache beside the transcripts."""

import gzip
import random
import sqlite3
import stat
import zlib
from contextlib import closing
from pathlib import Path

import pytest

from config import SessionSettings
from gateway.sessions import SessionManager
from gateway.sessions import entries as e
from gateway.sessions.keys import file_name
from gateway.sessions.storage.archive import ArchiveFiles
from gateway.sessions.storage.archived_transcript import BLOCK, ArchivedTranscript
from gateway.sessions.storage.search_index import MESSAGES_PER_STEP, SearchIndex
from gateway.spool import DeleteSession, Spool
from tests.polling import until
from tests.sessions.conftest import ANN, SCOPE, Clock


def indexed(directory: Path) -> dict[str, int]:
    """Return the size of the part that is indexed of each transcript."""
    path = directory / "search.db"
    if not path.exists():
        return {}
    with closing(sqlite3.connect(path)) as file:
        try:
            return dict(file.execute("SELECT name, size FROM transcript").fetchall())
        except sqlite3.OperationalError:  # It is being created.
            return {}


def sizes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in (directory / "transcripts").iterdir()}


def opened(directory: Path) -> SearchIndex:
    return SearchIndex(directory / "search.db", directory / "transcripts", ArchiveFiles(directory / "archive"))


def files_with(folder: Path, text: bytes) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and text in path.read_bytes()]


async def talk(manager: SessionManager, *texts: str) -> str:
    session = await manager.start_new(SCOPE, agent="main", origin=ANN)
    await manager.append(session.key, [e.User(content=text) for text in texts])
    return session.key


async def found(manager: SessionManager, words: str) -> list[str]:
    return [hit.snippet for hit in (await manager.search(manager.last_used(SCOPE), words)).hits]


async def test_the_flush_indexes_what_has_changed(manager: SessionManager, directory: Path) -> None:
    key = await talk(manager, *(f"needle {number}" for number in range(3 * MESSAGES_PER_STEP)))
    assert indexed(directory) == {}
    await manager.flush()
    await until(lambda: indexed(directory) == sizes(directory))
    await manager.append(key, [e.Assistant(content="the last needle")])
    assert (await found(manager, "needle"))[:2] == ["the last needle", f"needle {3 * MESSAGES_PER_STEP - 1}"]
    await manager.flush()
    await until(lambda: indexed(directory) == sizes(directory))
    assert (await found(manager, "needle"))[:2] == ["the last needle", f"needle {3 * MESSAGES_PER_STEP - 1}"]
    assert await found(manager, "needle 382") == ["needle 382"]
    assert stat.S_IMODE((directory / "search.db").stat().st_mode) == 0o600


@pytest.mark.parametrize("damage", ["lost", "no database", "overwritten", "another version", "a folder"])
async def test_an_index_that_cannot_be_used_is_built_again(
    manager: SessionManager, directory: Path, damage: str
) -> None:
    await talk(manager, "needle")
    path = directory / "search.db"
    if damage == "a folder":
        path.mkdir()
    elif damage != "lost":
        index = opened(directory)
        index.update_all()
        index.close()
        if damage == "another version":
            with closing(sqlite3.connect(path)) as file:
                file.executescript("PRAGMA user_version = 99; DROP TABLE transcript")
        else:
            size = path.stat().st_size
            path.write_bytes(
                b"x" * size if damage == "no database" else path.read_bytes()[:4096] + b"x" * (size - 4096)
            )
    assert await found(manager, "needle") == ["needle"]
    await manager.flush()
    assert await found(manager, "needle") == ["needle"]
    if damage == "a folder":
        path.rmdir()

    async def is_built() -> bool:
        await manager.flush()
        return indexed(directory) == sizes(directory)

    await until(is_built)
    assert await found(manager, "needle") == ["needle"]


async def test_a_replaced_transcript_is_indexed_again(manager: SessionManager, directory: Path) -> None:
    key = await talk(manager, "needle", "pin")
    index = opened(directory)
    index.update_all()
    path = directory / "transcripts" / file_name(key)
    path.write_bytes(path.read_bytes().replace(b"needle", b"thread").replace(b"pin", b"tin"))
    index.update_all()
    matches = index.matches([path.name], ["thread"])
    assert matches is not None
    assert matches.offsets is not None
    assert len(matches.offsets[path.name]) == 1
    gone = index.matches([path.name], ["needle"])
    assert gone is not None
    assert not gone.offsets
    index.close()
    assert await found(manager, "thread") == ["thread"]


async def test_other_sessions_are_not_searched(manager: SessionManager, directory: Path) -> None:
    first, second = await talk(manager, "needle"), await talk(manager, "needle")
    index = opened(directory)
    index.update_all()
    matches = index.matches([file_name(second)], ["needle"])
    assert matches is not None
    assert matches.offsets is not None
    assert set(matches.offsets) == {file_name(second)} != {file_name(first)}
    index.close()


async def test_deleted_text_leaves_the_index_with_the_flush(tmp_path: Path) -> None:
    directory = tmp_path / "sessions"
    async with await Spool.open(tmp_path) as spool:
        manager = await SessionManager.open(directory, SessionSettings(), Clock(), journal=spool)
        await manager.recover()
        kept = await talk(manager, "hay")
        key = await talk(manager, *["xylophone needle"] * 500)
        await manager.flush()
        await until(lambda: indexed(directory) == sizes(directory))
        assert {"search.db", "search.db-wal"} & set(files_with(tmp_path, b"xylophone"))
        await manager.delete(key, also=[DeleteSession(session=key, scope=SCOPE)])
        await manager.flush()
        assert files_with(tmp_path, b"xylophone") == []
        assert list(indexed(directory)) == [file_name(kept)]
        await manager.close()


async def archive(manager: SessionManager, *texts: str) -> str:
    """Archive a session with these messages. Another one stays in the list."""
    key = await talk(manager, *texts)
    await talk(manager, "hay")
    await manager.archive_session(key)
    return key


async def test_a_new_index_has_the_archived_sessions(manager: SessionManager, directory: Path) -> None:
    key = await archive(manager, *["needle"] * 3 * MESSAGES_PER_STEP, "pin")
    for _ in range(2):  # The second time, nothing is missing.
        index = opened(directory)
        index.update_all()
        matches = index.matches([file_name(key)], ["pin"])
        index.close()
        assert matches is not None
        assert matches.offsets is not None
        assert [len(matches.offsets[name]) for name in matches.offsets] == [1]


async def test_text_of_a_deleted_archived_session_leaves_the_index(tmp_path: Path) -> None:
    directory = tmp_path / "sessions"
    async with await Spool.open(tmp_path) as spool:
        manager = await SessionManager.open(directory, SessionSettings(), Clock(), journal=spool)
        await manager.recover()
        key = await archive(manager, *["xylophone needle"] * 500)
        await manager.flush()
        await until(lambda: file_name(key) in indexed(directory))
        await manager.delete(key, also=[DeleteSession(session=key, scope=SCOPE)])
        await manager.flush()
        assert files_with(tmp_path, b"xylophone") == []
        assert file_name(key) not in indexed(directory)
        await manager.close()


@pytest.mark.parametrize("has_marks", [True, False])
async def test_an_archived_transcript_can_be_read_from_any_offset(tmp_path: Path, has_marks: bool) -> None:  # noqa: FBT001 - a parameter of the test.
    """Files of older versions have no marks."""
    rng = random.Random(7)  # noqa: S311 - a test.
    lines = [rng.randbytes(rng.randint(0, 3_000)).hex().encode() for _ in range(500)]
    content = b"\n".join(lines) + b"\n"
    assert len(content) > 4 * BLOCK
    path = tmp_path / "1.gz"
    packer = zlib.compressobj(wbits=31)
    packed = gzip.compress(b"{}\n")
    for start in range(0, len(content), BLOCK):
        packed += packer.compress(content[start : start + BLOCK])
        if has_marks and start + BLOCK < len(content):
            packed += packer.flush(zlib.Z_FULL_FLUSH)
    path.write_bytes(packed + packer.flush())
    with closing(ArchivedTranscript(path)) as transcript:
        assert transcript.size == len(content)
        for _ in range(50):
            offset, size = rng.randint(0, len(content) + 10), rng.choice([1, 300, 3 * BLOCK])
            assert transcript.read(size, offset) == content[offset : offset + size]
        start = len(b"\n".join(lines[:40])) + 1
        assert transcript.line_at(start) == lines[40]
        assert [*transcript.lines_backwards(start)] == [b"", *reversed(lines[40:])]
