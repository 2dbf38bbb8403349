import asyncio
from pathlib import Path
from typing import Any

import pytest

from config import SessionSettings
from gateway.database.postgres import PostgresConnection
from gateway.sessions import SessionManager
from gateway.sessions import entries as e
from gateway.sessions.entries import TurnOutcome
from gateway.sessions.storage.row_search import PostgresSearch
from gateway.spool import Spool
from tests.sessions.conftest import ANN, SCOPE, Clock, OpenManager, undo

BOB = "agent:main:web:direct:bob"
FOUND = [
    ("我们昨天备份了数据库 没有问题", "数据库"),
    ("我们昨天备份了数据库 没有问题", "备份"),
    ("東京タワーに行きました", "タワー"),
    ("Donaudampfschifffahrtsgesellschaftskapitän", "GESELLSCHAFT"),
    ("Donaudampfschifffahrtsgesellschaftskapitän", "KAPITÄN schiff"),
    ("Straßenbahnhaltestelle", "STRASSENBAHN"),
    ("STRASSENBAHN", "straßen"),
    ("İstanbul'a gittik", "i̇stanbul"),
    ("ΟΔΥΣΣΕΥΣ", "οδυσσευς"),
    ("an of it", "of"),
    ("an of it", "f"),
    ("five-percent: 5% off_", "5% off_"),
    ('a \\ backslash and a "quote"', '\\ "quote"'),
    ("c++ and c#", "c#"),
    ("a🙂b🙂c", "🙂b🙂"),
    ("the end\0of the world", "world"),
]
"""Texts, and words that are found in them."""


async def talk(manager: SessionManager, scope: str, *texts: str) -> None:
    session = await manager.start_new(scope, agent="main", origin=ANN)
    await manager.append(session.key, [e.User(content=text) for text in texts])


async def test_a_search_needs_all_words_and_ignores_case(manager: SessionManager) -> None:
    await talk(manager, SCOPE, "A trip to LISBON", "a trip to Porto", 'Straße "x" \\ \n é')
    found = await manager.search(manager.last_used(SCOPE), "lisbon Trip")
    assert [(hit.number, hit.role, hit.snippet) for hit in found.hits] == [(1, "user", "A trip to LISBON")]
    assert not found.stopped_early
    assert len((await manager.search(manager.last_used(SCOPE), "STRASSE É")).hits) == 1


async def test_a_message_is_found_as_soon_as_it_is_committed(tmp_path: Path) -> None:
    async with await Spool.open(tmp_path) as spool:
        manager = await SessionManager.open(tmp_path / "sessions", SessionSettings(), Clock(), journal=spool)
        await manager.recover()
        await talk(manager, SCOPE, "needle")
        assert len((await manager.search(manager.last_used(SCOPE), "needle")).hits) == 1
        await manager.close()


async def test_the_newest_hits_come_first(manager: SessionManager) -> None:
    await talk(manager, SCOPE, "needle one", "needle two")
    await talk(manager, SCOPE, "needle three")
    assert [hit.snippet for hit in (await manager.search(manager.last_used(SCOPE), "needle")).hits] == [
        "needle three",
        "needle two",
        "needle one",
    ]


async def test_a_search_stays_within_its_scope(manager: SessionManager) -> None:
    await talk(manager, BOB, "needle")
    assert (await manager.search(manager.last_used(SCOPE), "needle")).hits == ()


async def test_a_snippet_shows_the_text_around_the_hit(manager: SessionManager) -> None:
    await talk(manager, SCOPE, "x " * 500 + "needle" + " y" * 500)
    hit = (await manager.search(manager.last_used(SCOPE), "needle")).hits[0]
    assert "needle" in hit.snippet
    assert hit.snippet.startswith("…")
    assert len(hit.snippet) <= 121


@pytest.mark.parametrize("bounds", [{"limit": 3}, {"max_bytes": 200}, {"max_seconds": 0.0}])
async def test_a_search_reports_that_it_stopped_at_a_limit(manager: SessionManager, bounds: dict[str, Any]) -> None:
    await talk(manager, SCOPE, *["needle"] * 50)
    found = await manager.search(manager.last_used(SCOPE), "needle", **bounds)
    assert found.stopped_early
    assert len(found.hits) <= 3


async def test_a_search_without_words_finds_nothing(manager: SessionManager) -> None:
    await talk(manager, SCOPE, "needle")
    assert (await manager.search(manager.last_used(SCOPE), "  ")).hits == ()


async def test_a_cancelled_search_does_not_delay_the_next_one(manager: SessionManager) -> None:
    await talk(manager, SCOPE, *["needle in a haystack"] * 2000)
    task = asyncio.create_task(manager.search(manager.last_used(SCOPE), "absent", max_seconds=600))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(60):
        assert (await manager.search(manager.last_used(SCOPE), "needle", limit=1)).hits


@pytest.mark.parametrize(("text", "words"), FOUND)
async def test_a_part_of_a_word_is_found_in_any_script(manager: SessionManager, text: str, words: str) -> None:
    await talk(manager, SCOPE, "something else", text, "something more")
    for _ in range(2):  # Before and after the flush, which may index it.
        assert len((await manager.search(manager.last_used(SCOPE), words)).hits) == 1
        await manager.flush()


@pytest.mark.parametrize("words", ["gesellschaften", "abd", "a%c", "a_c", '"', "abc OR xyz", "NEAR(abc)", "abc*"])
async def test_words_are_no_patterns(manager: SessionManager, words: str) -> None:
    await talk(manager, SCOPE, "abc", "Gesellschaft", "xyz")
    for _ in range(2):
        assert (await manager.search(manager.last_used(SCOPE), words)).hits == ()
        await manager.flush()


async def test_messages_before_and_after_a_flush_are_found_together(manager: SessionManager) -> None:
    session = await manager.start_new(SCOPE, agent="main", origin=ANN)
    for number in range(4):
        await manager.append(session.key, [e.User(content=f"needle {number}"), e.Assistant(content="hay")])
        if number == 1:
            await manager.flush()
    found = await manager.search(manager.last_used(SCOPE), "needle")
    assert [hit.snippet for hit in found.hits] == ["needle 3", "needle 2", "needle 1", "needle 0"]


async def test_a_common_word_is_found_in_the_newest_messages(manager: SessionManager) -> None:
    session = await manager.start_new(SCOPE, agent="main", origin=ANN)
    for start in range(0, 1_500, 500):
        await manager.append(session.key, [e.User(content=f"needle {start + each}") for each in range(500)])
        await manager.flush()
    await talk(manager, BOB, "needle of Bob")
    found = await manager.search(manager.last_used(SCOPE), "needle", limit=3)
    assert [hit.snippet for hit in found.hits] == ["needle 1499", "needle 1498", "needle 1497"]
    assert found.stopped_early
    assert len((await manager.search(manager.last_used(BOB), "needle")).hits) == 1


@pytest.mark.parametrize("size", [1, 400_000])
async def test_rare_words_change_the_speed_of_a_search_only(manager: SessionManager, size: int) -> None:
    """Databases compare the texts of small sessions, and use an index for others."""
    texts = [f"needle{number}, {'hay' if number % 3 else 'straw'} of it" for number in range(30)]
    await talk(manager, SCOPE, "needle7 x", *texts, *("x" * size for _ in range(2)))
    await talk(manager, SCOPE, "needle7, HAY of it", "Straße 7, hay of it", *("y" * size for _ in range(2)))
    await manager.archive_session(manager.last_used(SCOPE)[1].key)
    archived = [session.meta for session in await manager.archive.list(SCOPE)]
    for _ in range(2):  # Before and after the flush, which may index them.
        for words, rare, count in (
            ("hay needle7 of", ["needle7"], 2),
            ("hay of strasse", ["strasse"], 1),
            ("needle7 of", ["of"], 2),
            ("hay needle7 absent", ["needle7"], 0),
            ("needle", ["needle"], 32),
        ):
            found = await manager.search(manager.last_used(SCOPE), words, archived=archived, rare=rare, limit=40)
            assert len(found.hits) == count, words
            assert found == await manager.search(manager.last_used(SCOPE), words, archived=archived, limit=40)
        await manager.flush()


async def test_the_frequencies_of_words_are_estimated_by_a_sample(manager: SessionManager) -> None:
    assert await manager.frequencies(manager.last_used(SCOPE), ["needle"]) == {}
    for _ in range(3):
        texts = [f"{'THE' if number % 2 else 'Straße'} needle {number}" for number in range(400)]
        await talk(manager, SCOPE, *texts[:200])
        await manager.append(manager.last_used(SCOPE)[0].key, [e.User(content=text) for text in texts[200:]])
    await talk(manager, BOB, *["absent"] * 300)
    await manager.archive_session(manager.last_used(SCOPE)[2].key)
    metas = [*manager.last_used(SCOPE), *(session.meta for session in await manager.archive.list(SCOPE))]
    assert len(metas) == 3
    for _ in range(2):
        parts = await manager.frequencies(metas, ["needle", "the", "strasse", "absent"])
        assert (parts["needle"], parts["absent"]) == (1, 0)
        assert 0.4 < parts["the"] < 0.6
        assert parts["the"] + parts["strasse"] == pytest.approx(1)
        await manager.flush()


async def test_undone_and_cleared_messages_are_found(manager: SessionManager) -> None:
    session = await manager.start_new(SCOPE, agent="main", origin=ANN)
    await manager.append(
        session.key, [e.User(content="needle", turn="t"), e.TurnEnd(turn="t", outcome=TurnOutcome.ANSWERED)]
    )
    await undo(manager, session.key)
    await manager.clear(session.key)
    for _ in range(2):
        assert len((await manager.search(manager.last_used(SCOPE), "needle")).hits) == 1
        await manager.flush()


@pytest.mark.parametrize("is_flushed", [False, True])
async def test_a_deleted_session_is_not_found(manager: SessionManager, is_flushed: bool) -> None:  # noqa: FBT001 - a parameter of the test.
    await talk(manager, SCOPE, "needle one")
    await talk(manager, SCOPE, "needle two")
    sessions = manager.last_used(SCOPE)
    if is_flushed:
        await manager.flush()
    await manager.delete(sessions[0].key)
    for _ in range(2):
        assert [hit.snippet for hit in (await manager.search(sessions, "needle")).hits] == ["needle one"]
        await manager.flush()
    await talk(manager, SCOPE, "needle three")
    found = await manager.search(manager.last_used(SCOPE), "needle")
    assert [hit.snippet for hit in found.hits] == ["needle three", "needle one"]


async def search_all(manager: SessionManager, words: str) -> list[tuple[str, bool]]:
    """Return the snippets of all hits in the scope, and whether they are archived."""
    archived = [session.meta for session in await manager.archive.list(SCOPE)]
    found = await manager.search(manager.last_used(SCOPE), words, archived=archived)
    return [(hit.snippet, hit.is_archived) for hit in found.hits]


@pytest.mark.parametrize("is_flushed", [False, True])
async def test_a_message_is_found_once_when_its_session_goes_to_the_archive_and_back(
    manager: SessionManager,
    is_flushed: bool,  # noqa: FBT001 - a parameter of the test.
) -> None:
    await talk(manager, SCOPE, "needle one", "hay")
    await talk(manager, SCOPE, "needle two")
    if is_flushed:
        await manager.flush()
    key = manager.last_used(SCOPE)[1].key
    for _ in range(2):
        await manager.archive_session(key)
        for _ in range(2):  # Before and after the flush, which may index it.
            assert await search_all(manager, "needle") == [("needle two", False), ("needle one", True)]
            assert await search_all(manager, "hay") == [("hay", True)]
            await manager.flush()
        archived = await manager.archive.find(key)
        assert archived is not None
        await manager.archive.restore(archived, [])
        for _ in range(2):
            assert sorted(await search_all(manager, "needle")) == [("needle one", False), ("needle two", False)]
            await manager.flush()
    assert (await manager.search(manager.last_used(SCOPE)[:1], "needle")).hits[0].is_archived is False


async def test_short_words_are_found_in_the_archive(manager: SessionManager) -> None:
    await talk(manager, SCOPE, "an of it")
    await talk(manager, SCOPE, "hay")
    await manager.archive_session(manager.last_used(SCOPE)[1].key)
    assert await search_all(manager, "of") == [("an of it", True)]


@pytest.mark.parametrize("is_flushed", [False, True])
async def test_a_deleted_archived_session_is_not_found(manager: SessionManager, is_flushed: bool) -> None:  # noqa: FBT001 - as above.
    await talk(manager, SCOPE, "needle one")
    await talk(manager, SCOPE, "needle two")
    key = manager.last_used(SCOPE)[1].key
    await manager.archive_session(key)
    if is_flushed:
        await manager.flush()
    archived = [session.meta for session in await manager.archive.list(SCOPE)]
    await manager.delete(key)
    for _ in range(2):
        found = await manager.search(manager.last_used(SCOPE), "needle", archived=archived)
        assert [hit.snippet for hit in found.hits] == ["needle two"]
        await manager.flush()


async def test_archived_messages_are_found_after_a_kill(open_manager: OpenManager) -> None:
    manager = await open_manager()
    await talk(manager, SCOPE, "needle one")
    await talk(manager, SCOPE, "needle two")
    await manager.archive_session(manager.last_used(SCOPE)[1].key)
    manager = await open_manager()
    for _ in range(2):
        assert await search_all(manager, "needle") == [("needle two", False), ("needle one", True)]
        await manager.flush()


async def test_long_archived_sessions_are_searched_in_all_their_parts(manager: SessionManager) -> None:
    session = await manager.start_new(SCOPE, agent="main", origin=ANN)
    texts = [f"needle{number} {'x' * 200_000}" if number % 4 else f"needle{number}" for number in range(12)]
    await manager.append(session.key, [e.User(content=text) for text in texts])
    await talk(manager, SCOPE, "hay")
    await manager.archive_session(session.key)
    for _ in range(2):
        for number in (0, 11, 5, 4):
            snippet, is_archived = (await search_all(manager, f"needle{number}"))[-1]
            assert snippet.split()[0] == f"needle{number}"
            assert is_archived
        assert len(await search_all(manager, "needle")) == 10
        await manager.flush()


@pytest.mark.parametrize("is_flushed", [False, True])
async def test_messages_are_found_after_a_kill(open_manager: OpenManager, is_flushed: bool) -> None:  # noqa: FBT001 - as above.
    manager = await open_manager()
    await talk(manager, SCOPE, "needle one")
    if is_flushed:
        await manager.flush()
    await manager.append(manager.last_used(SCOPE)[0].key, [e.User(content="needle two")])
    manager = await open_manager()
    for _ in range(2):
        found = await manager.search(manager.last_used(SCOPE), "needle")
        assert [hit.snippet for hit in found.hits] == ["needle two", "needle one"]
        await manager.flush()


async def test_long_sessions_are_searched_like_short_ones(manager: SessionManager) -> None:
    """Databases compare the texts of small sessions, and use an index for others."""
    await talk(manager, SCOPE, *dict(FOUND), *("x" * 500_000 for _ in range(6)))
    await talk(manager, BOB, *dict(FOUND))
    for _ in range(2):
        for text, words in FOUND:
            found = (await manager.search(manager.last_used(SCOPE), words)).hits
            assert any(hit.snippet[:5] == text[:5] for hit in found), words
            assert {hit.key for hit in found} == {manager.last_used(SCOPE)[0].key}
        assert (await manager.search(manager.last_used(SCOPE), "gesellschaften")).hits == ()
        await manager.flush()
    await manager.delete(manager.last_used(SCOPE)[0].key)
    for _ in range(2):
        assert (await manager.search(manager.last_used(SCOPE), "gesellschaft")).hits == ()
        await manager.flush()
    assert len((await manager.search(manager.last_used(BOB), "gesellschaft")).hits) == 1


def test_postgresql_plans_each_search_for_its_words(each_database_url: str) -> None:
    """After a few runs, a prepared search would collect all rows of its sessions, whatever the words are."""
    with PostgresConnection(each_database_url) as connection:
        connection.execute("CREATE TABLE entry (session text, seq bigint, line text, folded text)")
        connection.execute("INSERT INTO entry VALUES ('a', 1, '{}', 'a needle')")
        search = PostgresSearch(lambda sql, parameters: connection.execute(sql, parameters).fetchall())

        assert search.compare(["a"], ["needle"]) == search.matches(["a"], ["needle"]) == [("a", 1)]
        assert list(search.lines("a", ["needle"])) == [b"{}"]
        prepared = [sql for (sql,) in connection.execute("SELECT statement FROM pg_prepared_statements").fetchall()]

    assert any("INSERT INTO entry" in sql for sql in prepared)
    assert not any("LIKE" in sql for sql in prepared)
