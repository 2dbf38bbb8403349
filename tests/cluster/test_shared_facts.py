"""What every node of a cluster has in memory or does for its shards: two nodes on one database, without daemons."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import psycopg
import pytest

from gateway.access.guests import FACTS, GuestBook
from gateway.access.pairing import Pairing
from gateway.access.tokens import TOKEN_FACTS, ApiToken, NewToken, TokenBook, TokenIssuer
from gateway.cluster import membership
from gateway.contract import TokenScope
from gateway.errors import HeldElsewhere, Refused
from gateway.memory import Archived, MemoryStore, Source, Statement
from gateway.memory.shared import SharedMemory
from gateway.shards import SHARD_COUNT, Shards, shard_of
from gateway.spool import (
    AddReminder,
    AddToOutbox,
    AddUsage,
    MarkDead,
    MarkSending,
    ReminderContent,
    RetryDead,
    SetFact,
    Spool,
    utc_day,
)
from gateway.turns.usage import DailyUsage
from tests.access.test_tokens import SETTINGS
from tests.cluster.harness import TIMEOUT
from tests.cluster.test_arrivals import node_lease
from tests.polling import POLL_INTERVAL
from tests.spool.postgres_tables import create_tables
from tests.spool.samples import NOW, inbound, outbound

SCOPES = [f"agent:main:telegram:direct:{number}" for number in range(20)]


class Node:
    """A node that owns some shards."""

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self.now = NOW
        self.ended: list[str] = []
        self.tokens = TokenIssuer(
            TokenBook(lambda: self.now),
            spool,
            settings=lambda: SETTINGS,
            now=lambda: self.now,
            on_ended=self.ended.append,
        )
        self.pairing = Pairing(
            GuestBook(), spool, now=lambda: self.now, on_revoked=lambda: self.ended.append("someone's work")
        )

    def owned(self) -> str:
        """Return a scope that this node owns."""
        shards = self.spool.shards
        assert shards is not None
        return next(scope for scope in SCOPES if shards.owns(scope))

    async def read(self) -> None:
        """Read the facts, as a node does when they have changed."""
        facts = await self.spool.facts()
        self.tokens.read({name: value for name, value in facts.items() if name.startswith(TOKEN_FACTS)})
        self.pairing.read({name: value for name, value in facts.items() if name.startswith(FACTS)})


@asynccontextmanager
async def two_nodes(url: str, folder: Path) -> AsyncIterator[tuple[Node, Node]]:
    create_tables(url)
    async with AsyncExitStack() as stack:
        nodes = []
        for name in ("a", "b"):
            lease = node_lease(folder / name)
            spool = await stack.enter_async_context(await Spool.open_database(url, folder / name, lease=lease))
            spool.shards = Shards()
            half = {tuple(range(SHARD_COUNT)): SHARD_COUNT // 2}
            spool.shards.epochs = await spool.run(partial(membership.claim, lease.boot, half))
            nodes.append(Node(spool))
        yield nodes[0], nodes[1]


async def _token(node: Node) -> tuple[ApiToken, str]:
    return await node.tokens.create(NewToken(name="ci", scopes=frozenset({TokenScope.READ})))


async def test_a_last_use_brings_no_revoked_token_back(tmp_path: Path, database_url: str) -> None:
    async with two_nodes(database_url, tmp_path) as (one, other):
        token, secret = await _token(one)
        await other.read()
        assert other.tokens.book.identify(secret) is not None
        await one.tokens.revoke(token.id)
        await other.tokens.save_last_uses()
        assert await one.spool.facts(TOKEN_FACTS) == {}
        await other.read()
        assert other.ended == [token.id]
        assert other.tokens.book.identify(secret) is not None, "it is known, and allows nothing"
        assert other.tokens.book.find(token.id) is None


async def test_the_latest_use_of_a_token_is_kept(tmp_path: Path, database_url: str) -> None:
    async with two_nodes(database_url, tmp_path) as (one, other):
        token, secret = await _token(one)
        await other.read()
        other.now += timedelta(seconds=10)
        for node in (one, other):
            node.tokens.book.identify(secret)
        await other.tokens.save_last_uses()
        await one.read()
        assert one.tokens.book.tokens[token.id].last_used_at == NOW, "its own use is not stored yet"
        await one.tokens.save_last_uses()
        for node in (one, other):
            await node.read()
            assert node.tokens.book.tokens[token.id].last_used_at == other.now


async def test_a_request_for_access_is_decided_once(tmp_path: Path, database_url: str) -> None:
    async with two_nodes(database_url, tmp_path) as (one, other):

        async def reply(_text: str, operations: object) -> None:
            assert isinstance(operations, list)
            await one.spool.commit(*operations)

        assert await one.pairing.request(inbound("hello"), reply)
        await other.read()
        (asked,), (known,) = one.pairing.waiting(), other.pairing.waiting()
        guest = await one.pairing.approve(asked)
        with pytest.raises(Refused, match="unknown or expired"):
            await other.pairing.approve(known)
        await other.read()
        assert other.pairing.guest_book.guests == {guest.person: guest}
        with pytest.raises(Refused, match="was approved already"):
            await other.pairing.find_applicant(asked.code)
        await other.pairing.revoke(guest)
        assert one.ended == []
        await one.read()
        assert one.pairing.guest_book.guests == {}
        assert one.ended == ["someone's work"]


async def test_the_daily_usage_is_that_of_all_nodes(tmp_path: Path, database_url: str) -> None:
    async with two_nodes(database_url, tmp_path) as (one, other):
        here, there = (DailyUsage(node.spool, lambda: NOW, max_age=0.0) for node in (one, other))
        assert (await here.today("ann")).tokens == (await there.today("ann")).tokens == 0
        spend = AddUsage(day=utc_day(NOW), person="ann", model="m", input_tokens=70)
        there.add(spend)
        assert (await there.today("ann")).tokens == 70, "what is not committed yet counts as well"
        assert (await here.today("ann")).tokens == 0
        await other.spool.commit(spend)
        assert (await here.today("ann")).tokens == 70
        assert (await there.today("ann")).tokens == 70


async def test_a_revived_reply_is_sent_by_its_owner_only(tmp_path: Path, database_url: str) -> None:
    async with two_nodes(database_url, tmp_path) as (one, other):
        scope = other.owned()
        for key in ("k1", "k2"):
            await other.spool.commit(
                AddToOutbox(key=key, turn=None, message=outbound("hi"), at=NOW, scope=scope),
                MarkSending(key=key, at=NOW),
                MarkDead(key=key, reason="blocked"),
                scope=scope,
            )
        await one.spool.commit(RetryDead(key="k1", at_owner=True))
        assert await one.spool.take_revived() == []
        (row,) = await other.spool.take_revived()
        assert (row.key, row.scope) == ("k1", scope)
        assert await other.spool.take_revived() == []
        # The next owner of the shard reads everything that waits, also what was revived in the meantime.
        await one.spool.commit(RetryDead(key="k2", at_owner=True))
        recovered = await other.spool.recover([shard_of(scope)])
        assert [row.key for row in recovered.outbox] == ["k1", "k2"]
        assert await other.spool.take_revived() == []


async def test_reminders_of_a_shard_are_due_when_it_was_read(tmp_path: Path, database_url: str) -> None:
    async with two_nodes(database_url, tmp_path) as (one, other):
        scope, message = other.owned(), inbound("remind me")
        content = ReminderContent(address=message.address, maker=message.sender, text="tea")
        await other.spool.commit(
            AddReminder(id="r1", scope=scope, due_at=NOW, cron=None, about=content, max_per_scope=9, max_total=9)
        )
        assert await one.spool.due_reminders(NOW, limit=9) == []
        assert other.spool.shards is not None
        other.spool.shards.loading.add(shard_of(scope))
        assert await other.spool.due_reminders(NOW, limit=9) == []
        other.spool.shards.loading.clear()
        assert [row.id for row in await other.spool.due_reminders(NOW, limit=9)] == ["r1"]


async def test_the_memory_follows_a_scope_to_its_next_owner(tmp_path: Path, database_url: str) -> None:
    async with two_nodes(database_url, tmp_path) as (one, other):
        scope, fetched = one.owned(), list[Path]()
        here, there = (MemoryStore(tmp_path / name / "memory" / "s") for name in ("a", "b"))
        first, second = SharedMemory(one.spool, fetched.append), SharedMemory(other.spool, fetched.append)
        here.add([Statement(text="older than the cluster")], day="2026-03-01")
        await first.fetch(scope, here.folder)
        here.add([Statement(text="likes tea")], day="2026-03-02")
        await first.store(scope, here.folder)
        await first.fetch(scope, here.folder)
        assert fetched == []
        # The other node takes the shard, adds a statement, and forgets one.
        assert one.spool.shards is not None
        assert other.spool.shards is not None
        other.spool.shards.epochs[shard_of(scope)] = 2
        epoch = one.spool.shards.epochs.pop(shard_of(scope))
        await second.fetch(scope, there.folder)
        assert fetched == [there.folder]
        assert texts(there) == ["older than the cluster", "likes tea"]
        assert all(path.stat().st_mode & 0o077 == 0 for path in there.folder.iterdir())
        there.add([Statement(text="likes cake")], day="2026-03-02")
        there.forget(1)
        await second.store(scope, there.folder)
        here.add([Statement(text="too late")], day="2026-03-02")
        with pytest.raises(HeldElsewhere):
            await first.store(scope, here.folder)
        # It comes back.
        one.spool.shards.epochs[shard_of(scope)] = epoch + 2
        await first.fetch(scope, here.folder)
        assert texts(here) == texts(there) == ["likes tea", "likes cake"]


async def test_what_a_dying_node_has_archived_and_not_stored_is_not_there_twice(
    tmp_path: Path, database_url: str
) -> None:
    async with two_nodes(database_url, tmp_path) as (one, other):
        scope = one.owned()
        here, there = (MemoryStore(tmp_path / name / "memory" / "s") for name in ("a", "b"))
        mark = Archived(session=3, id="x", seq=9)
        here.add([Statement(text="likes tea", sources=(Source(3, 4),))], day="2026-03-01", archived=mark)
        assert one.spool.shards is not None
        assert other.spool.shards is not None
        del one.spool.shards.epochs[shard_of(scope)]  # It dies.
        other.spool.shards.epochs[shard_of(scope)] = 2
        there.add([Statement(text="Ada likes tea", sources=(Source(3, 4),))], day="2026-03-02", archived=mark)
        there.add([Statement(text="by hand")], day="2026-03-03")
        await SharedMemory(other.spool, lambda _folder: None).fetch(scope, there.folder)
        # It comes back. Its own note stays, since nobody else has it.
        here.add([Statement(text="noted here", noted="2026-03-01")], day="2026-02-28")
        del other.spool.shards.epochs[shard_of(scope)]
        one.spool.shards.epochs[shard_of(scope)] = 3
        await SharedMemory(one.spool, lambda _folder: None).fetch(scope, here.folder)
        assert sorted(texts(here)) == ["Ada likes tea", "by hand", "noted here"]


async def test_notes_of_an_older_version_become_shared_memory(tmp_path: Path, database_url: str) -> None:
    async with two_nodes(database_url, tmp_path) as (one, other):
        scope, note = one.owned(), '{"ts":"2026-03-01T00:00:00Z","text":"likes tea"}\n'
        await one.spool.commit(SetFact(name="notes/s.jsonl", value=note))
        here, there = (MemoryStore(tmp_path / name / "memory" / "s") for name in ("a", "b"))
        await SharedMemory(one.spool, lambda _folder: None).fetch(scope, here.folder)
        assert texts(here) == ["likes tea"]
        assert await one.spool.facts("notes/") == {}
        await SharedMemory(other.spool, lambda _folder: None).fetch(scope, there.folder)
        assert texts(there) == ["likes tea"]


def texts(store: MemoryStore) -> list[str]:
    return [each.text for each in store.read().statements]


async def test_nodes_that_charge_the_same_people_do_not_wait_for_each_other(tmp_path: Path, database_url: str) -> None:
    """The rows are locked in one order. Otherwise two nodes would deadlock, which stops both for a second."""
    async with two_nodes(database_url, tmp_path) as (one, other):
        ann, bob = (AddUsage(day="2026-03-01", person=name, model="m", input_tokens=1) for name in ("ann", "bob"))
        await one.spool.commit(ann, bob)
        async with asyncio.timeout(TIMEOUT), asyncio.TaskGroup() as tasks:
            with psycopg.connect(database_url) as connection, psycopg.connect(database_url, autocommit=True) as watcher:
                waits = "SELECT 1 FROM pg_locks WHERE NOT granted"
                connection.execute("SELECT 1 FROM usage WHERE person = 'ann' FOR UPDATE")
                tasks.create_task(one.spool.commit(bob, ann))
                while watcher.execute(waits).fetchone() is None:  # noqa: ASYNC110 - PostgreSQL does it.
                    await asyncio.sleep(POLL_INTERVAL)
                await other.spool.commit(bob)  # Bob's row is free, although it came first.
        assert (await one.spool.usage("2026-03-01")).input_tokens == 5
