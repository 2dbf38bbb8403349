"""A backup of any storage engine can be restored into any other."""

import asyncio
import gzip
from datetime import UTC, datetime
from pathlib import Path

import pytest

from config import Settings
from gateway.admin.archive import open_stores
from gateway.backup.create import Backup
from gateway.backup.restore import Restored, restore_backup
from gateway.data_dir import DataDirLock
from gateway.errors import CannotStart, Refused
from gateway.spool import SetFact
from tests.backup.test_backup import quick, talk, written
from tests.daemon.harness import gateway
from tests.daemon.harness import settings as daemon_settings
from tests.sessions.engines import ENGINES
from tests.storage_copy.fixtures import NewStorage
from tests.storage_copy.harness import contents, copy, exports, fill

NOW = datetime(2026, 3, 1, tzinfo=UTC)


async def taken(backup: Backup, path: Path) -> Path:
    blocks = [block async for block in backup.blocks()]
    return written(path, gzip.compress(b"".join(blocks), 1))


async def taken_offline(configured: Settings, path: Path) -> Path:
    directory = configured.gateway.data_dir
    async with open_stores(configured) as (sessions, spool):
        assert spool is not None
        return await taken(Backup(directory, spool=spool, sessions=sessions, now=lambda: NOW), path)


def restored(archive: Path, target: Settings, *, replaces: bool = False) -> Restored:
    directory = target.gateway.data_dir
    with DataDirLock(directory):
        return restore_backup(archive, directory, replaces=replaces, now=NOW, storage=target.storage)


@pytest.mark.parametrize("target", ENGINES)
@pytest.mark.parametrize("source", ENGINES)
async def test_backup_is_restored_into_another_engine(
    source: str, target: str, new_storage: NewStorage, tmp_path: Path
) -> None:
    old, new = new_storage(source), new_storage(target)
    await fill(old)
    memory = old.gateway.data_dir / "memory"
    memory.mkdir(exist_ok=True)
    (memory / "note").write_text("kept")
    archive = await taken_offline(old, tmp_path / "backup.tar.gz")
    assert not list(old.gateway.data_dir.glob(".backup-*"))
    result = restored(archive, new)
    assert result.manifest.transcripts() == 4
    assert contents(new) == contents(old)
    assert await exports(new) == await exports(old)
    directory = new.gateway.data_dir
    assert (directory / "memory/note").read_text() == "kept"
    assert not list(directory.glob(".restoring-*"))
    if target != "files":
        assert not (directory / "spool.db").exists()
        assert not list(directory.rglob("*.jsonl"))


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
async def test_backup_of_a_busy_database_shows_one_moment(engine: str, new_storage: NewStorage, tmp_path: Path) -> None:
    """A message is in the inbox or in a transcript, and the restored gateway answers it once."""
    storage = new_storage(engine)
    configured = daemon_settings(tmp_path / "old", storage={"url": storage.storage.url})
    accepted: list[str] = []
    midway = asyncio.Event()
    async with gateway(configured, quick) as (daemon, chat), asyncio.TaskGroup() as tasks:
        for peer in ("ada", "bob", "eve"):
            tasks.create_task(talk(chat, peer, accepted, midway), name=f"talk:{peer}")
        await midway.wait()
        before = list(accepted)
        directory = configured.gateway.data_dir
        backup = Backup(directory, spool=daemon.spool, sessions=daemon.sessions, now=daemon.now)
        archive = await taken(backup, tmp_path / "backup.tar.gz")
    new = daemon_settings(tmp_path / "new")
    new.gateway.data_dir.mkdir(parents=True, mode=0o700)
    restored(archive, new)
    async with gateway(new, quick):
        pass  # It ends when all turns have.
    text = b"".join((await exports(new)).values()).decode()
    for said in before:
        assert text.count(f'"content":"{said}') == 1


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
async def test_database_that_is_not_empty_is_not_restored_into(
    engine: str, new_storage: NewStorage, tmp_path: Path
) -> None:
    old, other = new_storage("files"), new_storage(engine)
    await fill(old)
    await fill(other)
    archive = await taken_offline(old, tmp_path / "backup.tar.gz")
    empty = new_storage("files")
    target = empty.model_copy(update={"storage": other.storage})
    before = contents(other)
    with pytest.raises(Refused, match="already has data"):
        restored(archive, target)
    assert contents(other) == before
    assert [path.name for path in target.gateway.data_dir.iterdir()] == ["gatehouse.lock"]


async def test_database_in_the_data_directory_is_replaced_with_the_other_files(
    new_storage: NewStorage, tmp_path: Path
) -> None:
    old, new = new_storage("files"), new_storage("sqlite")
    await fill(old)
    async with open_stores(new) as (_, spool):
        assert spool is not None
        await spool.commit(SetFact(name="old", value="fact"))
    archive = await taken_offline(old, tmp_path / "backup.tar.gz")
    with pytest.raises(Refused, match="--replace"):
        restored(archive, new)
    result = restored(archive, new, replaces=True)
    assert result.set_aside is not None
    assert (result.set_aside / "gatehouse.db").exists()
    assert contents(new) == contents(old)


class Killed(BaseException):
    pass


async def test_interrupted_restore_into_a_database_is_continued(
    new_storage: NewStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = new_storage("files"), new_storage("postgresql")
    await fill(old)
    archive = await taken_offline(old, tmp_path / "backup.tar.gz")

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("gateway.storage_copy.database.DatabaseWriter.write_table", die)
        with pytest.raises(Killed):
            restored(archive, new)
    with pytest.raises(CannotStart, match="unfinished copy of the backup"):
        async with open_stores(new):
            pass
    with pytest.raises(Refused, match="unfinished copy of the backup"):
        copy(old, new)
    restored(archive, new)
    assert contents(new) == contents(old)
