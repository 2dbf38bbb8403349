"""Appends and the journal: a refused append leaves no gap, and a committed one is applied even if it was cancelled."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from config import SessionSettings
from gateway.contract import Address, PeerKind
from gateway.errors import Refused
from gateway.sessions import SessionManager, entries
from gateway.spool import OnCommitted, Operation, SpoolUnavailable
from tests.sessions.conftest import SCOPE


class SlowJournal:
    """A journal whose commits end when the test says so."""

    def __init__(self) -> None:
        self.waiting: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()
        self.is_slow = False

    async def commit(
        self,
        *_operations: Operation,
        scope: str | None = None,  # noqa: ARG002 - there is one gateway only.
        on_done: OnCommitted | None = None,
    ) -> None:
        ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if on_done is not None:
            ending.add_done_callback(lambda ended: on_done(ended.exception()))
        if self.is_slow:
            self.waiting.put_nowait(ending)
        else:
            asyncio.get_running_loop().call_soon(ending.set_result, None)
        await asyncio.shield(ending)

    async def unflushed_entries(self) -> AsyncIterator[tuple[str, list[tuple[int, bytes]]]]:
        nothing: list[tuple[str, list[tuple[int, bytes]]]] = []
        for noted in nothing:
            yield noted

    async def drop_entries(self, upto: Mapping[str, int]) -> None:
        pass

    async def deletions(self) -> list[str]:
        return []

    async def purge(self, sessions: Collection[str]) -> list[str]:
        return list(sessions)


@pytest.fixture
def journal() -> SlowJournal:
    return SlowJournal()


@pytest.fixture
async def sessions(tmp_path: Path, journal: SlowJournal) -> AsyncIterator[SessionManager]:
    manager = await SessionManager.open(tmp_path, SessionSettings(), lambda: datetime.now(UTC), journal=journal)
    await manager.recover()
    origin = Address(channel="web", account="default", kind=PeerKind.DIRECT, peer="ann")
    await manager.start_new(SCOPE, agent="main", origin=origin)
    journal.is_slow = True
    yield manager
    journal.is_slow = False
    await manager.close()


async def test_a_refused_append_leaves_no_gap_in_the_seq(sessions: SessionManager, journal: SlowJournal) -> None:
    first = asyncio.create_task(sessions.append(SCOPE, [entries.User(content="refused")]))
    second = asyncio.create_task(sessions.append(SCOPE, [entries.User(content="taken")]))
    async with asyncio.timeout(60):
        (await journal.waiting.get()).set_exception(SpoolUnavailable("full"))
        with pytest.raises(SpoolUnavailable):
            await first
        (await journal.waiting.get()).set_result(None)
        await second
    session = await sessions.load(SCOPE)
    assert [entry.seq for entry in session.entries] == list(range(1, len(session.entries) + 1))
    assert [entry.content for entry in session.entries if isinstance(entry, entries.User)] == ["taken"]


async def test_a_committed_append_is_applied_although_its_caller_was_cancelled(
    sessions: SessionManager, journal: SlowJournal
) -> None:
    asking = asyncio.create_task(sessions.append(SCOPE, [entries.User(content="patience")]))
    async with asyncio.timeout(60):
        committing = await journal.waiting.get()
        asking.cancel()
        await asyncio.wait([asking])
        committing.set_result(None)
        journal.is_slow = False
        await sessions.append(SCOPE, [entries.User(content="next")])
    session = await sessions.load(SCOPE)
    assert [entry.content for entry in session.entries if isinstance(entry, entries.User)] == ["patience", "next"]


async def test_a_deletion_waits_for_entries_that_are_being_committed(
    sessions: SessionManager, journal: SlowJournal
) -> None:
    asking = asyncio.create_task(sessions.append(SCOPE, [entries.User(content="too late")]))
    async with asyncio.timeout(60):
        committing = await journal.waiting.get()
        journal.is_slow = False
        deleting = asyncio.create_task(sessions.delete(SCOPE))
        await asyncio.sleep(0)
        assert sessions.find(SCOPE) is not None
        committing.set_result(None)
        await asking
        await deleting
    assert sessions.list(SCOPE) == []


async def test_a_setting_committed_while_its_session_is_deleted_is_not_refused(
    sessions: SessionManager, journal: SlowJournal
) -> None:
    """The answer to the user is in the same commit, so a refusal would come too late."""
    clearing = asyncio.create_task(sessions.clear(SCOPE))
    async with asyncio.timeout(60):
        committing = await journal.waiting.get()
        journal.is_slow = False
        deleting = asyncio.create_task(sessions.delete(SCOPE))
        await asyncio.sleep(0)
        committing.set_result(None)
        assert (await clearing).key == SCOPE
        await deleting


async def test_an_entry_that_arrives_during_a_deletion_is_refused(
    sessions: SessionManager, journal: SlowJournal
) -> None:
    """It would be journaled behind the deletion, and a replay would bring it back."""
    deleting = asyncio.create_task(sessions.delete(SCOPE))
    async with asyncio.timeout(60):
        committing = await journal.waiting.get()
        appending = asyncio.create_task(sessions.append(SCOPE, [entries.User(content="late")]))
        await asyncio.sleep(0)
        assert journal.waiting.empty()
        committing.set_result(None)
        await deleting
        with pytest.raises(Refused):
            await appending


async def test_a_session_whose_deletion_cannot_be_committed_stays(
    sessions: SessionManager, journal: SlowJournal
) -> None:
    journal.is_slow = False
    origin = Address(channel="web", account="default", kind=PeerKind.DIRECT, peer="ann")
    active = await sessions.start_new(SCOPE, agent="main", origin=origin)
    journal.is_slow = True
    deleting = asyncio.create_task(sessions.delete(active.key))
    async with asyncio.timeout(60):
        (await journal.waiting.get()).set_exception(SpoolUnavailable("full"))
        with pytest.raises(SpoolUnavailable):
            await deleting
    assert [each.key for each in sessions.list(SCOPE)] == [active.key, SCOPE]
    assert sessions.active(SCOPE) == active
    assert [problem.kind for problem in (await sessions.verify()).problems] == []
