import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from gateway.errors import CannotStart, Refused
from gateway.files.store import UPLOADS, TooLarge, folder_of
from tests.files.harness import chunks, left, opened


async def endless(seen: list[int]) -> AsyncGenerator[bytes, None]:
    while True:
        seen.append(1)
        yield bytes(1000)


async def test_a_file_is_private_from_its_creation(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    kept = await store.keep("s", "a.txt", chunks(b"hel", b"lo"), limit=5)
    assert (kept.ref, kept.size, kept.path.read_bytes()) == ("s/a.txt", 5, b"hello")
    assert kept.path.stat().st_mode & 0o777 == 0o600
    assert kept.path.parent.stat().st_mode & 0o777 == 0o700
    assert await store.read("s/a.txt", 3) == b"hel"
    assert left(tmp_path) == ["s/a.txt"]


async def test_an_unusable_folder_is_reported_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "files").write_bytes(b"")
    with pytest.raises(CannotStart, match=r"Can't use .*files: "):
        await opened(tmp_path)


async def test_a_file_beyond_the_limit_is_refused_and_not_kept(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    seen: list[int] = []
    with pytest.raises(TooLarge):
        await store.keep("s", "a", endless(seen), limit=5_000)
    assert len(seen) == 6
    assert left(tmp_path) == []


async def test_incomplete_files_are_deleted_at_the_next_start(tmp_path: Path) -> None:
    await opened(tmp_path)
    (tmp_path / "files" / ".incoming" / "tmpx").write_bytes(b"half")
    await opened(tmp_path)
    assert left(tmp_path) == []


async def test_the_oldest_files_are_evicted(tmp_path: Path) -> None:
    store = await opened(tmp_path, budget=1_000)
    for number in range(5):
        kept = await store.keep("s", f"{number}", chunks(bytes(300)), limit=300)
        os.utime(kept.path, (number, number))
    assert left(tmp_path) == ["s/2", "s/3", "s/4"]
    with pytest.raises(Refused, match="no longer stored"):
        await store.find("s/0")


async def test_a_restart_measures_the_stored_files(tmp_path: Path) -> None:
    await (await opened(tmp_path)).keep("s", "a", chunks(bytes(900)), limit=900)
    os.utime(tmp_path / "files" / "s" / "a", (1, 1))
    again = await opened(tmp_path, budget=1_000)
    await again.keep("s", "b", chunks(bytes(200)), limit=200)
    assert left(tmp_path) == ["s/b"]


@pytest.mark.parametrize(
    "ref", ["../../etc/passwd", "s/../../x", "s", "", "/etc/passwd", ".incoming/x", "s/.x", "s/a/b"]
)
async def test_no_ref_points_outside_the_store(tmp_path: Path, ref: str) -> None:
    store = await opened(tmp_path)
    with pytest.raises(Refused):
        await store.find(ref)
    with pytest.raises(Refused):
        await store.move(ref, "s", "a")


async def test_removing_a_session_deletes_its_files_and_no_others(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    for key in ("agent:main:a", "agent:main:b"):
        await store.keep(folder_of(key), "came", chunks(b"x"), limit=1)
        await store.keep(folder_of(key), "went", chunks(b"x"), limit=1)
    assert await store.remove_session("agent:main:a")
    assert await store.remove_session("agent:main:a")
    assert await store.remove_session("agent:main:never")
    kept = folder_of("agent:main:b")
    assert left(tmp_path) == [f"{kept}/came", f"{kept}/went"]


async def test_a_removal_that_a_crash_interrupted_is_finished_at_the_next_start(tmp_path: Path) -> None:
    """The folder is moved away first, so a crash leaves it there with some of its files."""
    await opened(tmp_path)
    half = tmp_path / "files" / ".incoming" / "a-session"
    half.mkdir()
    (half / "b").write_bytes(b"x")
    await opened(tmp_path)
    assert left(tmp_path) == []
    assert not half.exists()


async def test_removed_files_no_longer_count(tmp_path: Path) -> None:
    store = await opened(tmp_path, budget=1_000)
    await store.keep(folder_of("agent:main:a"), "a", chunks(bytes(900)), limit=900)
    await store.remove_session("agent:main:a")
    await store.keep("t", "b", chunks(bytes(600)), limit=600)
    os.utime(tmp_path / "files/t/b", (1, 1))
    await store.keep("t", "c", chunks(bytes(300)), limit=300)
    assert left(tmp_path) == ["t/b", "t/c"]


async def test_only_sessions_that_exist_keep_their_files(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    for key in ("agent:main:a", "agent:main:b"):
        await store.keep(folder_of(key), "x", chunks(b"x"), limit=1)
    await store.keep(UPLOADS, "new", chunks(b"x"), limit=1)
    await store.remove_orphans(["agent:main:b", "agent:main:c"])
    assert left(tmp_path) == [f"{folder_of('agent:main:b')}/x", "uploads/new"]


async def test_only_old_files_are_dropped(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    kept = await store.keep("s", "old", chunks(b"x"), limit=1)
    os.utime(kept.path, (1, 1))
    await store.keep("s", "new", chunks(b"x"), limit=1)
    await store.drop_older("s", 2.0)
    assert left(tmp_path) == ["s/new"]


async def test_a_stored_file_is_found_by_the_start_of_its_name(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await store.keep("s", "turn-1-an old name;.txt", chunks(b"x"), limit=1)
    await store.keep("s", "turn-10-b.txt", chunks(b"x"), limit=1)
    found = await store.find_prefixed("s", "turn-1-")
    assert found is not None
    assert found.ref == "s/turn-1-an old name;.txt"
    assert await store.find_prefixed("s", "turn-2-") is None
    assert await store.find_prefixed("never", "turn-1-") is None
