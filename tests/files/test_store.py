import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from gateway.errors import CannotStart, Refused
from gateway.files.store import TooLarge
from tests.files.harness import chunks, left, opened


async def endless(seen: list[int]) -> AsyncGenerator[bytes, None]:
    while True:
        seen.append(1)
        yield bytes(1000)


async def test_a_file_is_private_from_birth(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    kept = await store.keep("s", "a.txt", chunks(b"hel", b"lo"), limit=5)
    assert (kept.ref, kept.size, kept.path.read_bytes()) == ("s/a.txt", 5, b"hello")
    assert kept.path.stat().st_mode & 0o777 == 0o600
    assert kept.path.parent.stat().st_mode & 0o777 == 0o700
    assert await store.read("s/a.txt", 3) == b"hel"
    assert left(tmp_path) == ["s/a.txt"]


async def test_a_folder_that_cannot_be_used_is_named_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "files").write_bytes(b"")
    with pytest.raises(CannotStart, match=r"Can't use .*files: "):
        await opened(tmp_path)


async def test_an_endless_file_ends_at_the_limit_and_leaves_nothing(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    seen: list[int] = []
    with pytest.raises(TooLarge):
        await store.keep("s", "a", endless(seen), limit=5_000)
    assert len(seen) == 6
    assert left(tmp_path) == []


async def test_what_a_killed_daemon_was_writing_is_gone_at_the_next_start(tmp_path: Path) -> None:
    await opened(tmp_path)
    (tmp_path / "files" / ".incoming" / "tmpx").write_bytes(b"half")
    await opened(tmp_path)
    assert left(tmp_path) == []


async def test_the_oldest_make_room(tmp_path: Path) -> None:
    store = await opened(tmp_path, budget=1_000)
    for number in range(5):
        kept = await store.keep("s", f"{number}", chunks(bytes(300)), limit=300)
        os.utime(kept.path, (number, number))
    assert left(tmp_path) == ["s/2", "s/3", "s/4"]
    with pytest.raises(Refused, match="not kept any more"):
        await store.find("s/0")


async def test_a_restart_knows_how_full_it_is(tmp_path: Path) -> None:
    await (await opened(tmp_path)).keep("s", "a", chunks(bytes(900)), limit=900)
    os.utime(tmp_path / "files" / "s" / "a", (1, 1))
    again = await opened(tmp_path, budget=1_000)
    await again.keep("s", "b", chunks(bytes(200)), limit=200)
    assert left(tmp_path) == ["s/b"]


@pytest.mark.parametrize(
    "ref", ["../../etc/passwd", "s/../../x", "s", "", "/etc/passwd", ".incoming/x", "s/.x", "s/a/b"]
)
async def test_no_ref_leads_out_of_the_store(tmp_path: Path, ref: str) -> None:
    store = await opened(tmp_path)
    with pytest.raises(Refused):
        await store.find(ref)
    with pytest.raises(Refused):
        await store.move(ref, "s", "a")


async def test_a_folder_goes_with_all_that_is_in_it(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await store.keep("s", "a", chunks(b"x"), limit=1)
    await store.keep("t", "a", chunks(b"x"), limit=1)
    await store.drop("s")
    await store.drop("never")
    assert left(tmp_path) == ["t/a"]


async def test_only_old_files_are_dropped(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    kept = await store.keep("s", "old", chunks(b"x"), limit=1)
    os.utime(kept.path, (1, 1))
    await store.keep("s", "new", chunks(b"x"), limit=1)
    await store.drop_older("s", 2.0)
    assert left(tmp_path) == ["s/new"]
