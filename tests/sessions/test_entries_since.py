"""The entries of a session after a seq, from the cache and from the file."""

from contextlib import aclosing
from pathlib import Path

import pytest

from gateway.errors import Refused
from gateway.sessions import SessionManager
from gateway.sessions import entries as e
from gateway.sessions.keys import file_name
from tests.sessions.conftest import ANN, SCOPE, OpenManager


async def seqs(manager: SessionManager, key: str, after: int) -> list[int]:
    async with aclosing(manager.entries_since(key, after)) as found:
        return [entry.seq async for entry in found]


async def fill(manager: SessionManager, count: int, text: str) -> str:
    """Start a session of `count` messages, and return its key."""
    key = (await manager.start_new(SCOPE, agent="main", origin=ANN)).key
    for _ in range(count // 100):
        await manager.append(key, [e.User(content=text) for _ in range(100)])
    return key


@pytest.mark.parametrize("text", ["short", "long " * 2000])
async def test_entries_after_a_seq_are_read_from_the_file(open_manager: OpenManager, text: str) -> None:
    manager = await open_manager()
    key = await fill(manager, 1000, text)
    manager._store.cache.drop(key)  # noqa: SLF001 - as if many other sessions had been used since.
    meta = manager.find(key)
    assert meta is not None
    for after in (0, 1, 2, 3, 99, 500, meta.seq - 2, meta.seq - 1, meta.seq, meta.seq + 5):
        assert await seqs(manager, key, after) == list(range(after + 1, meta.seq + 1))


async def test_entries_after_a_seq_are_read_from_the_cache(open_manager: OpenManager, directory: Path) -> None:
    manager = await open_manager()
    key = await fill(manager, 300, "hello")
    await manager.flush()
    meta = manager.find(key)
    assert meta is not None
    (directory / "transcripts" / file_name(key)).unlink()  # Nothing can be read from the file.
    assert await seqs(manager, key, 10) == list(range(11, meta.seq + 1))


async def test_a_tail_in_the_cache_is_enough_for_its_own_entries(open_manager: OpenManager) -> None:
    key = await fill(await open_manager(), 1000, "hello")
    manager = await open_manager()
    tail = (await manager.load(key)).entries
    assert tail[0].seq > 1
    first, last = tail[0].seq, tail[-1].seq
    for after in (0, first - 2, first - 1, first, last - 1):
        assert await seqs(manager, key, after) == list(range(after + 1, last + 1))


async def test_an_unknown_session_has_no_entries(manager: SessionManager) -> None:
    with pytest.raises(Refused):
        await seqs(manager, SCOPE, 0)
