import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from gateway.aio import WorkerThread
from gateway.sessions import SessionManager
from gateway.sessions import entries as e
from gateway.sessions.cache import SessionCache
from gateway.sessions.entries import Entry
from gateway.sessions.feed import SessionFeed
from gateway.sessions.index import SessionIndex
from gateway.sessions.storage.files import FileStorage
from tests.sessions.conftest import ANN, SCOPE
from tests.sessions.samples import START

LONG: list[e.Entry] = [e.Clear()] * 100

MakeCache = Callable[..., SessionCache]


@pytest.fixture
def make_cache(tmp_path: Path) -> Iterator[MakeCache]:
    thread = WorkerThread("test")

    def make(feed: SessionFeed | None = None, **limits: int) -> SessionCache:
        return SessionCache(
            SessionIndex(), FileStorage(tmp_path), thread, lambda: START, feed or SessionFeed(), **limits
        )

    yield make
    thread.stop()


def test_the_least_recently_used_session_is_evicted_first(make_cache: MakeCache) -> None:
    cache = make_cache(max_sessions=2)
    cache.put("a", LONG, 1)
    cache.put("b", LONG, 1)
    cache.get("a")
    cache.put("c", LONG, 1)
    assert cache.get("b") is None
    assert cache.get("a") == LONG


def test_more_sessions_are_kept_while_they_are_short(make_cache: MakeCache) -> None:
    cache = make_cache(max_sessions=2)
    for number in range(9):
        cache.put(f"{number}", [e.Clear()], 1)
    assert [number for number in range(9) if cache.get(f"{number}")] == list(range(1, 9))
    cache.extend("8", LONG, 1)
    assert len(cache) == 2
    for key in ("7", "8"):
        cache.drop(key)
    cache.put("a", [e.Clear()], 1)
    cache.put("b", [e.Clear()], 1)
    cache.put("c", [e.Clear()], 1)
    assert len(cache) == 3


class Reader:
    """Follows a session."""

    def on_entries(self, entries: Sequence[Entry]) -> None:
        """Ignore them."""

    def on_text(self, turn: str, delta: str) -> None:
        """Ignore it."""

    def on_removed(self) -> None:
        """Ignore it."""


def test_more_sessions_are_kept_while_some_are_followed(make_cache: MakeCache) -> None:
    feed = SessionFeed()
    cache = make_cache(feed, max_sessions=2)
    with feed.followed("a", Reader()):
        for key in "abcd":
            cache.put(key, LONG, 1)
        assert len(cache) == 3
    cache.put("e", LONG, 1)
    assert len(cache) == 2


def test_the_bytes_are_limited_too(make_cache: MakeCache) -> None:
    cache = make_cache(max_bytes=100)
    cache.put("a", [], 60)
    cache.put("b", [], 30)
    cache.extend("b", [e.Clear()], 20)
    assert cache.get("a") is None
    assert cache.get("b") == [e.Clear()]


def test_a_session_larger_than_the_limit_is_not_cached(make_cache: MakeCache) -> None:
    cache = make_cache(max_bytes=100)
    cache.put("a", [], 101)
    assert len(cache) == 0


def test_appends_to_an_uncached_session_are_not_cached(make_cache: MakeCache) -> None:
    cache = make_cache()
    cache.extend("a", [e.Clear()], 20)
    assert cache.get("a") is None


def test_putting_a_session_again_does_not_count_it_twice(make_cache: MakeCache) -> None:
    cache = make_cache(max_bytes=100)
    for _ in range(5):
        cache.put("a", [], 60)
    assert cache.get("a") == []


@pytest.mark.parametrize("messages", [10, 20])
async def test_a_load_right_after_a_read_waits_until_that_is_cached(manager: SessionManager, messages: int) -> None:
    """The disk thread has finished, but the event loop has not called back yet."""
    key = (await manager.start_new(SCOPE, agent="main", origin=ANN)).key
    await manager.append(key, [e.User(content="hello")])
    cache = manager._store.cache  # noqa: SLF001 - the state in between is over in a moment
    cache.drop(key)
    first = asyncio.create_task(cache.load(key, 10))
    await asyncio.sleep(0)
    reading = cache._loads[key].reading  # noqa: SLF001 - as above
    while not reading.done():  # noqa: ASYNC110 - an event would come one iteration of the loop too late.
        await asyncio.sleep(0)
    assert key in cache._loads  # noqa: SLF001 - as above
    assert [entry for entry in await cache.load(key, messages) if isinstance(entry, e.User)]
    await first
