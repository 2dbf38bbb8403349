"""A full disk: entries wait in memory, in order, and no line is left half-written."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.errors import Refused
from gateway.sessions import SessionManager
from gateway.sessions import entries as e
from gateway.sessions.keys import file_name
from gateway.sessions.storage.files import FileStorage
from tests.disks import files_at_most, small_disk
from tests.sessions.conftest import ANN, SCOPE, OpenManager
from tests.sessions.samples import encoded, header, sealed

pytestmark = pytest.mark.files_only


@pytest.fixture
def path(directory: Path) -> Path:
    return directory / "transcripts" / file_name(SCOPE)


def content(path: Path) -> bytes:
    return path.read_bytes()


async def begin(manager: SessionManager) -> None:
    await manager.resolve_active(SCOPE, agent="main", origin=ANN)


def texts(manager_entries: tuple[e.Entry, ...]) -> list[str]:
    return [entry.content for entry in manager_entries if isinstance(entry, e.User)]


async def test_a_short_write_is_undone_and_retried_in_order(
    manager: SessionManager, open_manager: OpenManager, path: Path
) -> None:
    await begin(manager)
    whole = content(path)
    with files_at_most(len(whole) + 40):
        await manager.append(SCOPE, [e.User(content="first")])
        await manager.append(SCOPE, [e.User(content="second")])
        assert content(path) == whole
        assert manager.trouble is not None
        assert "can't be written" in manager.trouble
        assert texts((await manager.load(SCOPE)).entries) == ["first", "second"]
    await manager.append(SCOPE, [e.User(content="third")])
    assert manager.trouble is None
    assert texts((await (await open_manager()).load(SCOPE)).entries) == ["first", "second", "third"]


async def test_a_flush_writes_the_waiting_lines(manager: SessionManager, open_manager: OpenManager, path: Path) -> None:
    await begin(manager)
    with files_at_most(len(content(path)) + 40):
        await manager.append(SCOPE, [e.User(content="waits")])
    await manager.flush()
    assert manager.trouble is None
    assert texts((await (await open_manager()).load(SCOPE)).entries) == ["waits"]


async def test_a_session_started_on_a_full_disk_is_written_once_there_is_room(
    manager: SessionManager, open_manager: OpenManager
) -> None:
    with files_at_most(0):
        await manager.resolve_active(SCOPE, agent="main", origin=ANN)
        await manager.append(SCOPE, [e.User(content="hi")])
        assert texts((await manager.load(SCOPE)).entries) == ["hi"]
    await manager.flush()
    assert (await open_manager()).list(SCOPE) == manager.list(SCOPE)


@pytest.mark.parametrize("is_started", [True, False])
def test_waiting_lines_are_read_with_the_file(directory: Path, *, is_started: bool) -> None:
    """A session with waiting entries may be evicted from the cache and loaded again."""
    disk = FileStorage(directory)
    disk.prepare()
    opening, hi = encoded([header()]), encoded([header(), e.User(content="hi")])[len(encoded([header()])) :]
    if is_started:
        disk.append(SCOPE, opening, is_new=True)
    with files_at_most(0):
        if not is_started:
            disk.append(SCOPE, opening, is_new=True)
        disk.append(SCOPE, hi)
        assert disk.read(SCOPE).entries == sealed([header(), e.User(content="hi")])
        assert disk.waiting == (len(hi) if is_started else len(opening + hi))
    disk.begin_sync()
    assert disk.waiting == 0
    assert disk.read(SCOPE).entries == sealed([header(), e.User(content="hi")])


async def test_a_failed_flush_raises_nothing_and_the_next_one_recovers(
    manager: SessionManager, directory: Path
) -> None:
    await begin(manager)
    with files_at_most(0) as logs:
        await manager.flush()
        assert manager.trouble is not None
        assert [line["event"] for line in logs] == ["flush_failed"]
        assert not (directory / "index.json").exists()
    await manager.flush()
    assert manager.trouble is None
    assert (directory / "index.json").exists()


async def test_the_bytes_that_wait_for_the_disk_are_limited(manager: SessionManager) -> None:
    await begin(manager)
    with files_at_most(0):
        for _ in range(9):
            await manager.append(SCOPE, [e.User(content="x" * 8_000_000)])
        with pytest.raises(Refused, match="disk"):
            await manager.append(SCOPE, [e.User(content="one more")])
    await manager.flush()
    assert manager.trouble is None
    await manager.append(SCOPE, [e.User(content="one more")])
    assert manager.list(SCOPE)[0].messages == 10


@pytest.fixture
def directory(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Use a disk of 64 KiB if the test asks for one. This needs the right to mount."""
    if request.node.get_closest_marker("usefixtures") is None:
        yield tmp_path / "sessions"
        return
    with small_disk(tmp_path / "disk", 64 * 1024) as disk:
        yield disk / "sessions"


@pytest.mark.usefixtures("directory")
async def test_a_disk_that_is_really_full_loses_nothing_in_memory(
    manager: SessionManager, directory: Path, open_manager: OpenManager, path: Path
) -> None:
    await begin(manager)
    ballast = directory / "ballast"
    ballast.write_bytes(b"x" * 40_000)
    for number in range(30):
        await manager.append(SCOPE, [e.User(content=f"{number} " + "x" * 1000)])
    assert manager.trouble is not None
    assert "No space left" in manager.trouble
    assert content(path).endswith(b"}\n")
    await manager.flush()
    assert manager.trouble is not None
    ballast.unlink()
    await manager.flush()
    assert manager.trouble is None
    kept = texts((await (await open_manager()).load(SCOPE)).entries)
    assert [text.split()[0] for text in kept] == [str(number) for number in range(30)]
