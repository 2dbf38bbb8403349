"""The mirror: a copy of each transcript as a file, beside a database."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from config import SessionSettings, Settings
from gateway.errors import CannotStart
from gateway.sessions import SessionManager
from gateway.sessions import entries as e
from gateway.sessions.keys import file_name
from gateway.storage import open_storage
from tests.sessions.conftest import ANN, SCOPE, Clock


@asynccontextmanager
async def mirrored(folder: Path, *, mirror: bool = True) -> AsyncIterator[SessionManager]:
    url = f"sqlite://{folder}/gatehouse.db"
    settings = Settings.model_validate({"gateway": {"data_dir": folder}, "storage": {"url": url, "mirror": mirror}})
    async with open_storage(settings) as (spool, storage):
        manager = await SessionManager.open(storage, SessionSettings(), Clock(), journal=spool)
        try:
            await manager.recover()
            yield manager
        finally:
            await manager.close()


async def say(manager: SessionManager, text: str) -> str:
    key = (await manager.resolve_active(SCOPE, agent="main", origin=ANN)).key
    await manager.append(key, [e.User(content=text)])
    return key


async def exported(manager: SessionManager, key: str) -> bytes:
    return b"".join([line async for line in manager.export_lines(key)])


async def test_each_transcript_is_also_a_file(tmp_path: Path) -> None:
    async with mirrored(tmp_path) as manager:
        key = await say(manager, "hello")
        await say(manager, "again")
        lines = await exported(manager, key)
    file = tmp_path / "sessions/transcripts" / file_name(key)
    assert file.read_bytes() == lines
    assert file.stat().st_mode & 0o777 == 0o600


async def test_a_file_gets_the_lines_that_it_lacks_with_the_next_message(tmp_path: Path) -> None:
    """Lines are missing after a crash, or if the mirror was switched on later."""
    async with mirrored(tmp_path, mirror=False) as manager:
        key = await say(manager, "before the mirror")
    async with mirrored(tmp_path) as manager:
        await say(manager, "with the mirror")
        lines = await exported(manager, key)
    file = tmp_path / "sessions/transcripts" / file_name(key)
    assert file.read_bytes() == lines
    assert list(file.parent.iterdir()) == [file]


async def test_a_folder_that_cannot_be_used_is_named_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions/transcripts").touch()
    with pytest.raises(CannotStart, match="sessions/transcripts"):
        async with mirrored(tmp_path):
            pass


async def test_the_file_of_a_deleted_session_is_deleted(tmp_path: Path) -> None:
    async with mirrored(tmp_path) as manager:
        key = await say(manager, "hello")
        await manager.delete(key)
        await manager.flush()
    assert not list((tmp_path / "sessions/transcripts").iterdir())


async def test_a_mirror_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    async with mirrored(tmp_path) as manager:
        key = await say(manager, "hello")
        await exported(manager, key)  # By then, the file is written.
        file = tmp_path / "sessions/transcripts" / file_name(key)
        file.unlink()
        file.mkdir()
        await say(manager, "again")
        await exported(manager, key)
        await say(manager, "and again")
        lines = await exported(manager, key)
    assert lines.count(b'"user"') == 3
    assert file.read_bytes() == lines
