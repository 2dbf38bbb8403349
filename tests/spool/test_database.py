import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.errors import CannotStart
from gateway.spool import SetFact, Spool
from gateway.spool.schema import MIGRATIONS, Newer, migrate
from tests.spool.conftest import copied
from tests.spool.samples import accept


@pytest.fixture(params=[0o000, 0o022, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    assert tmp_path.exists(), "made before, so that it can be entered"
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.usefixtures("umask")
async def test_files_are_private_from_their_creation_with_any_umask(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    data_dir.chmod(0o700)
    async with await Spool.open(data_dir) as spool:
        await spool.commit(accept())
        modes = {file.name: file.stat().st_mode & 0o777 for file in data_dir.iterdir()}
    assert modes.keys() == {"spool.db", "spool.db-wal", "spool.reserve"}
    assert set(modes.values()) == {0o600}


async def test_the_mode_of_a_readable_file_is_corrected(tmp_path: Path) -> None:
    async with await Spool.open(tmp_path) as spool:
        spool.path.chmod(0o644)
    async with await Spool.open(tmp_path) as spool:
        assert spool.path.stat().st_mode & 0o777 == 0o600


async def test_a_newer_spool_is_refused_and_not_changed(tmp_path: Path) -> None:
    async with await Spool.open(tmp_path) as spool:
        await spool.commit(accept())
    _execute(spool.path, f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    before = spool.path.read_bytes()
    with pytest.raises(CannotStart, match="newer Gatehouse"):
        await Spool.open(tmp_path)
    assert spool.path.read_bytes() == before


async def test_a_second_process_cannot_open_it(tmp_path: Path) -> None:
    async with await Spool.open(tmp_path):
        with pytest.raises(CannotStart, match="in use"):
            await Spool.open(tmp_path)


async def test_an_unusable_directory_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="Can't use"):
        await Spool.open(tmp_path / "missing")


def _spoil_header(path: Path) -> None:
    path.write_bytes(b"not a database at all" * 1000)


def _spoil_middle(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:10_000])


def _make_foreign(path: Path) -> None:
    path.unlink()
    _execute(path, "CREATE TABLE theirs (a)")


@pytest.mark.parametrize("spoil", [_spoil_header, _spoil_middle, _cut, _make_foreign])
async def test_a_damaged_file_is_renamed_and_a_new_one_created(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    async with await Spool.open(tmp_path) as spool:
        await spool.commit(accept())
    spoil(spool.path)
    damaged = spool.path.read_bytes()
    with capture_logs() as logs:
        again = await Spool.open(tmp_path)
    async with again:
        found = await again.recover()
        await again.commit(accept())
    assert found.damaged_file is not None
    assert found.damaged_file.name.startswith("spool.db.corrupt-")
    assert found.damaged_file.read_bytes() == damaged
    assert (found.inbox, [line["event"] for line in logs]) == ((), ["spool_set_aside"])
    async with await Spool.open(tmp_path) as sound:
        assert sound.damaged_file is None
        assert len((await sound.recover()).inbox) == 1


async def test_a_wal_without_its_database_is_renamed_too(file_spool: Spool, tmp_path: Path) -> None:
    """As a start leaves it that was killed while it set the two aside."""
    await file_spool.commit(accept())
    directory = copied(file_spool.path, tmp_path / "cut")
    (directory / "spool.db").unlink()
    with capture_logs():
        again = await Spool.open(directory)
    async with again:
        found = await again.recover()
    assert found.inbox == ()
    assert found.damaged_file is not None
    assert found.damaged_file.with_name(f"{found.damaged_file.name}-wal").exists()


async def test_an_empty_file_is_a_new_spool(tmp_path: Path) -> None:
    (tmp_path / "spool.db").touch()
    async with await Spool.open(tmp_path) as spool:
        assert spool.damaged_file is None


def test_an_older_version_is_migrated(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "old.db", isolation_level=None)
    steps = [("CREATE TABLE a (x)", "INSERT INTO a VALUES (1)"), ("ALTER TABLE a ADD COLUMN y DEFAULT 2",)]
    migrate(connection, steps[:1])
    migrate(connection, steps)
    migrate(connection, steps)
    assert connection.execute("SELECT x, y FROM a").fetchall() == [(1, 2)]
    with pytest.raises(Newer):
        migrate(connection, steps[:1])
    connection.close()


async def test_a_copy_is_kept_before_a_migration(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "spool.db", isolation_level=None)) as old:
        migrate(old, MIGRATIONS[:1])
        old.execute("INSERT INTO facts VALUES ('name', 'value')")
    async with await Spool.open(tmp_path) as spool:
        assert await spool.facts("") == {"name": "value"}
    kept = tmp_path / "spool.db.version-1"
    assert kept.stat().st_mode & 0o777 == 0o600
    with contextlib.closing(sqlite3.connect(kept)) as copy:
        assert copy.execute("PRAGMA user_version").fetchone() == (1,)
        assert copy.execute("SELECT * FROM facts").fetchall() == [("name", "value")]


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    connection = sqlite3.connect(path, isolation_level=None)
    migrate(connection, [("CREATE TABLE a (x)",)])
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, [("CREATE TABLE a (x)",), ("ALTER TABLE a ADD COLUMN y",), ("nonsense",)])
    connection.close()
    again = sqlite3.connect(path)
    assert again.execute("SELECT sql FROM sqlite_master").fetchall() == [("CREATE TABLE a (x)",)]
    assert again.execute("PRAGMA user_version").fetchone() == (1,)
    again.close()


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9, 0.97])
async def test_a_wal_cut_anywhere_recovers_all_synced_commits(file_spool: Spool, tmp_path: Path, share: float) -> None:
    """A power cut can lose what was written after the last sync, and nothing before it."""
    log = file_spool.path.with_name("spool.db-wal")
    await file_spool.recover()  # What was asked for before has been done: the log has its length.
    sizes = [_written(log)]
    for number in range(30):
        await file_spool.commit(SetFact(name="last", value=str(number)))
        sizes.append(_written(log))
    directory = copied(file_spool.path, tmp_path / "cut")
    cut = int(sizes[0] + (sizes[-1] - sizes[0]) * share)
    os.truncate(directory / log.name, cut)
    async with await Spool.open(directory) as again:
        facts = await again.facts()
    acknowledged = sum(size <= cut for size in sizes) - 2
    assert int(facts.get("last", -1)) == acknowledged


def _written(log: Path) -> int:
    """Return how much of a log has been written to: a head, and whole frames of a page each."""
    head, frame = 32, 4096 + 24
    return head + -(-(len(log.read_bytes().rstrip(b"\0")) - head) // frame) * frame


async def test_the_wal_is_preallocated(file_spool: Spool) -> None:
    await file_spool.recover()
    log = file_spool.path.with_name("spool.db-wal")
    before = log.stat().st_size
    for number in range(100):
        await file_spool.commit(SetFact(name="last", value=str(number)))
    assert log.stat().st_size == before, "a commit need not write down a new one"


def _execute(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()
