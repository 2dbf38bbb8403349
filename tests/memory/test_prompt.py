"""What a model is told of the memory of a scope."""

from pathlib import Path

import pytest

from gateway.memory import MemoryStore, Statement
from gateway.memory.prompt import MemoryCache, quote_memory


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    return MemoryStore(tmp_path / "memory" / "scope")


def add(store: MemoryStore, text: str) -> None:
    store.add([Statement(text=text)], day="2026-11-19")


async def test_a_new_statement_is_read_after_forget(store: MemoryStore) -> None:
    cache = MemoryCache(store.folder.parent)
    assert await cache.text(store.folder, 2_000) == ""
    add(store, "likes tea")
    cache.forget(store.folder)
    assert '- "likes tea"' in await cache.text(store.folder, 2_000)


async def test_a_cached_memory_is_returned_without_reading_the_files(store: MemoryStore) -> None:
    cache = MemoryCache(store.folder.parent)
    add(store, "likes tea")
    text = await cache.text(store.folder, 2_000)
    (store.folder / "2026-11-19.md").unlink()
    assert await cache.text(store.folder, 2_000) == text


async def test_other_scopes_are_read_after_one_without_memory(store: MemoryStore) -> None:
    cache = MemoryCache(store.folder.parent)
    add(store, "likes tea")
    assert await cache.text(store.folder.with_name("other"), 2_000) == ""
    assert '- "likes tea"' in await cache.text(store.folder, 2_000)


async def test_a_first_statement_is_read_after_forget_although_the_folder_was_listed_before(store: MemoryStore) -> None:
    cache = MemoryCache(store.folder.parent)
    other = MemoryStore(store.folder.with_name("other"))
    add(store, "likes tea")
    assert await cache.text(other.folder, 2_000) == ""
    add(other, "likes coffee")
    cache.forget(other.folder)
    assert '- "likes coffee"' in await cache.text(other.folder, 2_000)


async def test_the_memory_is_read_if_the_folder_above_cannot_be_listed(store: MemoryStore, tmp_path: Path) -> None:
    add(store, "likes tea")
    not_a_folder = tmp_path / "file"
    not_a_folder.write_text("")
    assert '- "likes tea"' in await MemoryCache(not_a_folder).text(store.folder, 2_000)


async def test_notes_of_an_older_version_are_quoted(store: MemoryStore) -> None:
    store.folder.parent.mkdir()
    store.folder.with_name("scope.jsonl").write_text('{"ts":"2026-03-01T00:00:00Z","text":"likes tea"}\n')
    assert '- "likes tea"' in await MemoryCache(store.folder.parent).text(store.folder, 2_000)


def test_an_empty_memory_adds_nothing() -> None:
    assert quote_memory([], 2_000) == ""


def test_a_budget_of_zero_adds_nothing() -> None:
    assert quote_memory([Statement(text="likes tea")], 0) == ""


def test_statements_about_the_subject_are_quoted_besides_the_newest() -> None:
    old = Statement(text="The key of the greenhouse hangs behind the door.")
    many = [Statement(text=f"Something else, number {number}, {'x' * 60}") for number in range(100)]
    told = quote_memory([old, *many], 1_000, about="Where is the greenhouse key?")
    assert old.text in told
    assert many[-1].text in told
    assert len(told) < 1_200
    assert old.text not in quote_memory([old, *many], 1_000, about="What about the car?")


def test_a_long_statement_is_cut_and_hides_no_others() -> None:
    told = quote_memory([Statement(text="likes tea"), Statement(text="long " * 400)], 2_000)
    assert '- "likes tea"' in told
    assert "long long long" in told
    assert told.endswith('…"')


def test_statements_keep_their_order() -> None:
    told = quote_memory([Statement(text=f"number {number}") for number in range(9)], 2_000, about="number")
    assert told.splitlines()[1:] == [f'- "number {number}"' for number in range(9)]
