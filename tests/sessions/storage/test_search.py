import asyncio
from pathlib import Path

import pytest

from config import SessionSettings
from gateway.sessions import SessionManager
from gateway.sessions import entries as e
from gateway.spool import Spool
from tests.sessions.conftest import ANN, SCOPE, Clock

BOB = "agent:main:web:direct:bob"


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
async def test_a_search_reports_that_it_stopped_at_a_limit(manager: SessionManager, bounds: dict[str, int]) -> None:
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
