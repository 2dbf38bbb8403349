"""The shared storage of files: one suite for PostgreSQL and S3, and two stores that share one of them."""

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from config import Secret, Settings
from gateway.database import migrate
from gateway.errors import CannotStart, Refused, Transient
from gateway.files.shared import SharedFile, SharedFiles, shared_files
from gateway.files.store import UPLOADS, FileStore, TooLarge, folder_of
from tests.files.harness import chunks
from tests.postgres.fixtures import NewProxy

KEY = "agent:main:web:direct:me#1"
FOLDER = folder_of(KEY)
PART = 1 << 20


@pytest.fixture(scope="session")
def s3_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Settings]]:
    """Yield a function that makes the settings for a prefix of the bucket of a real S3 service."""
    pytest.importorskip("obstore", reason="obstore is not installed")
    from tests.files.s3_server import S3Server, find_weed  # noqa: PLC0415 - it needs obstore.

    program = find_weed()
    if program is None:
        pytest.skip("SeaweedFS is not installed")
    with S3Server(program, tmp_path_factory.mktemp("s3")) as server:
        yield lambda prefix="", **others: Settings(files=server.settings(prefix or uuid4().hex, **others))


@pytest.fixture(params=["database", "s3"])
def settings(request: pytest.FixtureRequest) -> Settings:
    if request.param == "s3":
        made: Settings = request.getfixturevalue("s3_settings")()
        return made
    url = request.getfixturevalue("database_url")
    made = Settings.model_validate({"storage": {"url": url}, "files": {"shared": "database"}})
    migrate.upgrade(made.storage)
    return made


@pytest.fixture
def shared(settings: Settings) -> SharedFiles:
    return opened(settings)


def opened(settings: Settings) -> SharedFiles:
    found = shared_files(settings)
    assert found is not None
    return found


async def store_in(folder: Path, shared: SharedFiles | None, budget: int = 100_000_000) -> FileStore:
    store = FileStore(folder, budget, shared)
    await store.open()
    return store


@pytest.fixture
async def one(tmp_path: Path, shared: SharedFiles) -> FileStore:
    return await store_in(tmp_path / "one", shared)


@pytest.fixture
async def other(tmp_path: Path, settings: Settings) -> FileStore:
    """Return the store of another node, with its own disk and its own connections."""
    return await store_in(tmp_path / "other", opened(settings))


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def names(files: list[SharedFile]) -> list[str]:
    return sorted(each.name for each in files)


# The contract of each storage.


@pytest.mark.parametrize("size", [0, 1, PART, PART + 1, 7 * PART + 3])
async def test_a_file_comes_back_as_it_was_put(shared: SharedFiles, tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    await shared.put("s/a", write(tmp_path / "in", content))
    target = write(tmp_path / "out", b"")
    assert await shared.fetch("s/a", target, limit=size) == size
    assert target.read_bytes() == content
    (found,) = await shared.list("s")
    assert (found.name, found.size) == ("a", size)


@pytest.mark.parametrize(
    "name", ["a b.txt", "50% off?#.txt", "a%20b", "ä€😀.txt", "a+b&c=d;.txt", "back\\slash", "x" * 200, "new\nline"]
)
async def test_any_name_of_a_file_can_be_stored(shared: SharedFiles, tmp_path: Path, name: str) -> None:
    await shared.put(f"s/{name}", write(tmp_path / "in", b"hello"))
    assert names(await shared.list("s")) == [name]
    assert await shared.fetch(f"s/{name}", write(tmp_path / "out", b""), limit=5) == 5
    await shared.delete(f"s/{name}")
    assert await shared.list("s") == []


async def test_a_second_file_of_that_name_replaces_the_first(shared: SharedFiles, tmp_path: Path) -> None:
    await shared.put("s/a", write(tmp_path / "in", bytes(3 * PART)))
    await shared.put("s/a", write(tmp_path / "in", b"short"))
    target = write(tmp_path / "out", b"")
    assert await shared.fetch("s/a", target, limit=PART) == 5
    assert target.read_bytes() == b"short"


async def test_two_nodes_can_put_the_same_file_at_once(shared: SharedFiles, tmp_path: Path) -> None:
    path = write(tmp_path / "in", bytes(2 * PART))
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(shared.put("s/a", path))
    assert [each.size for each in await shared.list("s")] == [2 * PART]


async def test_a_missing_file_and_one_beyond_the_limit_are_not_fetched(shared: SharedFiles, tmp_path: Path) -> None:
    target = write(tmp_path / "out", b"")
    with pytest.raises(FileNotFoundError):
        await shared.fetch("s/a", target, limit=10)
    await shared.put("s/a", write(tmp_path / "in", bytes(11)))
    with pytest.raises(OSError, match="too large") as caught:
        await shared.fetch("s/a", target, limit=10)
    assert caught.value.errno == errno.EFBIG
    assert target.read_bytes() == b""


async def test_a_moved_file_replaces_another_and_is_gone_from_its_place(shared: SharedFiles, tmp_path: Path) -> None:
    await shared.put("s/a", write(tmp_path / "in", b"new"))
    await shared.put("t/b", write(tmp_path / "in", b"older"))
    await shared.move("s/a", "t/b")
    assert (await shared.list("s"), [each.size for each in await shared.list("t")]) == ([], [3])
    with pytest.raises(FileNotFoundError):
        await shared.move("s/a", "t/b")
    assert [each.size for each in await shared.list("t")] == [3]


async def test_deletions_reach_no_other_file_and_can_be_repeated(shared: SharedFiles, tmp_path: Path) -> None:
    for ref in ("s/a", "s/b", "s2/a", "t/a"):
        await shared.put(ref, write(tmp_path / "in", b"x"))
    for _ in range(2):
        await shared.delete("t/a")
        await shared.delete_folder("s")
    assert [names(await shared.list(folder)) for folder in ("s", "s2", "t")] == [[], ["a"], []]


# Two stores.


async def test_a_file_that_one_node_stores_can_be_read_at_the_other(one: FileStore, other: FileStore) -> None:
    content = os.urandom(3 * PART + 7)
    kept = await one.keep(FOLDER, "a.bin", chunks(content[:PART], content[PART:]), limit=len(content))
    path = await other.path(kept.ref)
    assert path != kept.path
    assert path.read_bytes() == content
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert await other.read(kept.ref, 3) == content[:3]


async def test_many_readers_of_a_file_fetch_it_once(tmp_path: Path, one: FileStore, shared: SharedFiles) -> None:
    kept = await one.keep(FOLDER, "a", chunks(bytes(2 * PART)), limit=2 * PART)
    counting = CountingFiles(shared)
    reader = await store_in(tmp_path / "reader", counting)
    found = await asyncio.gather(*(reader.find(kept.ref) for _ in range(5)))
    assert {each.size for each in found} == {2 * PART}
    assert counting.fetched == [kept.ref]


async def test_an_upload_becomes_the_attachment_of_a_conversation_at_another_node(
    one: FileStore, other: FileStore, shared: SharedFiles
) -> None:
    await one.keep(UPLOADS, "abc-cat.png", chunks(b"cat"), limit=3)
    moved = await other.move(f"{UPLOADS}/abc-cat.png", FOLDER, "turn-1-cat.png")
    assert moved.path.read_bytes() == b"cat"
    assert await shared.list(UPLOADS) == []
    assert (await one.find(moved.ref)).path.read_bytes() == b"cat"
    with pytest.raises(Refused, match="Please send it again"):
        await other.move(f"{UPLOADS}/abc-cat.png", FOLDER, "turn-2-cat.png")


async def test_the_next_owner_of_a_conversation_finds_its_files(one: FileStore, other: FileStore) -> None:
    for name in ("turn-1-a.txt", "turn-2-b.txt"):
        await one.keep(FOLDER, name, chunks(b"x"), limit=1)
    found = await other.find_prefixed(FOLDER, "turn-2-")
    assert found is not None
    assert found.ref == f"{FOLDER}/turn-2-b.txt"
    assert await other.find_prefixed(FOLDER, "turn-3-") is None
    await other.fetch_session(KEY)
    assert sorted(os.listdir(other.folder(KEY))) == ["turn-1-a.txt", "turn-2-b.txt"]  # noqa: PTH208 - names suffice.


async def test_a_deleted_session_has_no_files_at_any_node(
    one: FileStore, other: FileStore, shared: SharedFiles
) -> None:
    kept = await one.keep(FOLDER, "a", chunks(b"x"), limit=1)
    copy = await other.path(kept.ref)
    assert await one.remove_session(KEY)
    assert await shared.list(FOLDER) == []
    await other.sweep(0.0)
    assert not copy.exists()
    with pytest.raises(Refused, match="no longer stored"):
        await other.find(kept.ref)


async def test_a_session_takes_its_files_along_to_another_key(one: FileStore, other: FileStore) -> None:
    await one.keep(FOLDER, "a", chunks(b"x"), limit=1)
    new = "agent:main:web:direct:you#1"
    for _ in range(2):
        await one.move_session(KEY, new)
    assert await other.read(f"{folder_of(new)}/a", 1) == b"x"
    with pytest.raises(Refused, match="no longer stored"):
        await other.find(f"{FOLDER}/a")


async def test_the_disk_is_a_cache_within_its_budget(tmp_path: Path, shared: SharedFiles) -> None:
    store = await store_in(tmp_path / "small", shared, budget=1_000)
    for number in range(5):
        await store.keep(FOLDER, str(number), chunks(bytes([number]) * 300), limit=300)
        os.utime(store.folder(KEY) / str(number), (number, number))
    assert len(await store.paths()) == 3
    assert await store.read(f"{FOLDER}/0", 1) == b"\0"
    assert sum(path.stat().st_size for path in await store.paths()) <= 1_000
    assert len(await shared.list(FOLDER)) == 5


async def test_a_node_does_not_delete_the_files_of_sessions_of_other_nodes(
    one: FileStore, other: FileStore, shared: SharedFiles
) -> None:
    kept = await one.keep(FOLDER, "a", chunks(b"x"), limit=1)
    await other.find(kept.ref)
    await other.remove_orphans([], is_only_node=False)
    assert await other.paths()
    await other.remove_orphans([])
    assert await shared.list(FOLDER) == []


async def test_files_from_before_are_shared_at_the_next_start(
    tmp_path: Path, other: FileStore, settings: Settings, shared: SharedFiles
) -> None:
    alone = await store_in(tmp_path / "files", None)
    await alone.keep(FOLDER, "a", chunks(b"x"), limit=1)
    store = await store_in(tmp_path / "files", shared)
    await store.sweep(0.0)
    assert await store.read(f"{FOLDER}/a", 1) == b"x"
    assert await other.read(f"{FOLDER}/a", 1) == b"x"
    # Once: the next start does not bring back what another node has deleted since.
    await other.remove_session(KEY)
    await (await store_in(tmp_path / "files", opened(settings))).sweep(0.0)
    assert await shared.list(FOLDER) == []


async def test_uploads_that_were_never_sent_are_deleted_everywhere(one: FileStore, shared: SharedFiles) -> None:
    await one.keep(UPLOADS, "a", chunks(b"x"), limit=1)
    (stored,) = await shared.list(UPLOADS)
    await one.sweep(stored.stored_at - 1)
    assert len(await shared.list(UPLOADS)) == 1
    await one.sweep(stored.stored_at + 1)
    assert await shared.list(UPLOADS) == []
    assert await one.paths() == []


# Limits and failures.


class CountingFiles:
    """A shared storage that counts the fetches."""

    def __init__(self, inner: SharedFiles) -> None:
        self._inner = inner
        self.fetched: list[str] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the methods of the storage.
        return getattr(self._inner, name)

    async def fetch(self, ref: str, path: Path, *, limit: int) -> int:
        self.fetched.append(ref)
        return await self._inner.fetch(ref, path, limit=limit)


@pytest.fixture
def database(database_url: str) -> Settings:
    tables = {"storage": {"url": database_url}, "files": {"shared": "database", "max_database_bytes": 1_000}}
    made = Settings.model_validate(tables)
    migrate.upgrade(made.storage)
    return made


async def test_a_file_that_is_too_large_for_the_database_is_refused_with_that_limit(
    tmp_path: Path, database: Settings
) -> None:
    store = await store_in(tmp_path / "files", opened(database))
    with pytest.raises(TooLarge) as caught:
        await store.keep(FOLDER, "a", chunks(bytes(1_001)), limit=5_000)
    assert caught.value.limit == 1_000
    assert await store.paths() == []


async def test_a_file_from_before_that_is_too_large_for_the_database_prevents_the_start(
    tmp_path: Path, database: Settings
) -> None:
    alone = await store_in(tmp_path / "files", None)
    await alone.keep(FOLDER, "a", chunks(bytes(1_001)), limit=5_000)
    with pytest.raises(CannotStart, match=r"larger than files\.max_database_bytes"):
        await store_in(tmp_path / "files", opened(database))
    assert len(await alone.paths()) == 1


async def test_nothing_counts_as_stored_while_the_database_is_away(
    tmp_path: Path, database: Settings, new_proxy: NewProxy
) -> None:
    proxy = new_proxy(database.storage.url)
    storage = database.storage.model_copy(update={"url": proxy.url})
    store = await store_in(tmp_path / "files", opened(database.model_copy(update={"storage": storage})))
    kept = await store.keep(FOLDER, "a", chunks(b"x"), limit=1)
    kept.path.unlink()
    proxy.refuse()
    with pytest.raises(OSError, match="the database can't be reached"):
        await store.keep(FOLDER, "b", chunks(b"x"), limit=1)
    assert await store.paths() == []
    with pytest.raises(Transient, match="can't be fetched now: the database can't be reached"):
        await store.path(kept.ref)
    with pytest.raises(Refused, match="can't be fetched now"):
        await store.find(kept.ref)
    with pytest.raises(Refused, match="can't be reached"):
        await store.find_prefixed(FOLDER, "c")
    await store.fetch_session(KEY)
    assert not await store.remove_session(KEY)


async def test_an_interrupted_put_stores_nothing(tmp_path: Path, database: Settings) -> None:
    shared = opened(database)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(shared.put("s/a", pipe))
        with await asyncio.to_thread(pipe.open, "wb") as writer:
            # A pipe holds less than that, so the transaction has begun to read, and holds the lock of the file.
            await asyncio.to_thread(writer.write, bytes(PART))
            task.cancel()
            await asyncio.wait({task})
    await shared.put("s/a", write(tmp_path / "in", b"next"))  # It waits for the end of the transaction.
    assert [each.size for each in await shared.list("s")] == [4]


async def test_wrong_settings_of_a_bucket_prevent_the_start(
    tmp_path: Path, s3_settings: Callable[..., Settings]
) -> None:
    for wrong in ({"s3_secret_key": Secret("wrong-secret-key")}, {"s3_bucket": "not-there"}):
        with pytest.raises(CannotStart, match=r"can't be used \(the bucket refuses: \w+\)\. Check files\.s3_bucket"):
            await store_in(tmp_path / "files", opened(s3_settings(**wrong)))


async def test_a_bucket_that_does_not_answer_does_not_prevent_the_start(
    tmp_path: Path, s3_settings: Callable[..., Settings]
) -> None:
    store = await store_in(tmp_path / "files", opened(s3_settings(s3_endpoint="http://127.0.0.1:9")))
    with pytest.raises(OSError, match="the bucket can't be reached"):
        await store.keep(FOLDER, "a", chunks(b"x"), limit=1)


async def test_without_a_shared_storage_nothing_is_fetched(tmp_path: Path) -> None:
    assert shared_files(Settings()) is None
    store = await store_in(tmp_path / "files", None)
    kept = await store.keep(FOLDER, "a", chunks(b"x"), limit=1)
    await store.fetch_session(KEY)
    await store.sweep(0.0)
    assert await store.path(kept.ref) == kept.path
    with pytest.raises(Refused, match="no longer stored"):
        await store.find(f"{FOLDER}/b")
