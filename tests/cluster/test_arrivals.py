"""Messages that another node has accepted: one that is refused does not hold up those behind it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

import psycopg
import pytest

from config import Settings
from gateway.access.rules import Live
from gateway.cluster import membership
from gateway.cluster.arrivals import _LIMIT, ArrivalQueue
from gateway.commands.turns import DroppedJobs
from gateway.contract import Inbound, Verdict
from gateway.database.migrate import HEAD
from gateway.database.node_lease import NodeLease
from gateway.database.postgres import PostgresConnection
from gateway.errors import HeldElsewhere, NeedsLabel, NotAccepted, RateLimited
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.placement import Placement
from gateway.shards import SHARD_COUNT, Shards, shard_of
from gateway.spool import AddArrival, MarkSeen, Spool, SpoolUnavailable
from tests.cluster.harness import TIMEOUT, cluster
from tests.spool.postgres_tables import create_tables
from tests.spool.samples import NOW, inbound

SCOPE = "agent:main:telegram:direct:5"


def node_lease(data_dir: Path, *, seconds: float = 60.0) -> NodeLease:
    return NodeLease(data_dir, name="a", seconds=seconds, version="1", schema=HEAD, config="")


class Queue:
    """The arrivals of a node that owns all shards. `outcomes` are those of the next deliveries."""

    def __init__(self, spool: Spool, shards: Shards) -> None:
        self.spool = spool
        self.outcomes: list[Verdict | Exception] = []
        self.delivered: list[str] = []
        self.held: frozenset[str] = frozenset()
        """The labels that messages of the scope need, and the node lacks."""
        self.arrivals = ArrivalQueue(spool, shards, Placement(Live(Settings()), spool), self._deliver)

    async def _deliver(self, message: Inbound) -> Verdict:
        self.delivered.append(message.text)
        assert message.arrival is not None
        if self.held and message.arrival.scope == SCOPE:
            raise NeedsLabel(SCOPE, self.held)
        outcome = self.outcomes.pop(0) if self.outcomes else Verdict.ACCEPTED
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is Verdict.ACCEPTED:
            await self.spool.commit(MarkSeen.of(message, NOW), scope=SCOPE)
        return outcome

    async def add(self, *texts: str) -> None:
        for text in texts:
            message = inbound(text, event_id=text)
            await self.spool.commit(
                MarkSeen.of(message, NOW), AddArrival(scope=SCOPE, inbound=message, at=datetime.now(UTC))
            )

    async def left(self) -> int:
        return len(await self.spool.arrivals({shard_of(SCOPE): 0}, limit=100))


@asynccontextmanager
async def queue(url: str, data_dir: Path) -> AsyncIterator[Queue]:
    create_tables(url)
    lease = node_lease(data_dir)
    async with await Spool.open_database(url, data_dir, lease=lease) as spool, asyncio.TaskGroup() as tasks:
        spool.shards = Shards()
        wanted = {tuple(range(SHARD_COUNT)): SHARD_COUNT}
        spool.shards.epochs = await spool.run(lambda connection: membership.claim(lease.boot, wanted, connection))
        found = Queue(spool, spool.shards)
        found.arrivals.lanes.open(tasks)
        async with asyncio.timeout(TIMEOUT):
            yield found


def _shutting_down() -> NotAccepted:
    failure = NotAccepted("The database can't be reached.")
    failure.__cause__ = SpoolUnavailable("away")
    return failure


@pytest.mark.parametrize("verdict", [Verdict.REFUSED, Verdict.IGNORED, Verdict.DUPLICATE])
async def test_a_refused_message_holds_up_no_other(database_url: str, tmp_path: Path, verdict: Verdict) -> None:
    async with queue(database_url, tmp_path) as node:
        await node.add("first", "second")
        node.outcomes = [verdict]
        await node.arrivals.catch_up(SCOPE)
        assert node.delivered == ["first", "second"]
        assert await node.left() == 0


@pytest.mark.parametrize("failure", [_shutting_down, lambda: RateLimited("Too many.", retry_after=0.01)])
async def test_a_message_that_cannot_be_accepted_now_is_tried_again(
    database_url: str, tmp_path: Path, failure: Callable[[], NotAccepted]
) -> None:
    async with queue(database_url, tmp_path) as node:
        await node.add("first", "second")
        node.outcomes = [failure()]
        await node.arrivals.catch_up(SCOPE)
        assert node.delivered == ["first", "first", "second"]
        assert await node.left() == 0


async def test_a_message_that_is_refused_to_a_program_is_set_aside(database_url: str, tmp_path: Path) -> None:
    """The node that has accepted it has told the program so. It cannot be told anything else now."""
    async with queue(database_url, tmp_path) as node:
        await node.add("first", "second")
        node.outcomes = [NotAccepted("That message was empty.")]
        await node.arrivals.catch_up(SCOPE)
        assert node.delivered == ["first", "second"]
        assert await node.left() == 0
        (dead,) = (await node.spool.listing()).inbox
        assert (dead.inbound.text, dead.note) == ("first", "That message was empty.")


async def test_a_message_that_cannot_be_read_is_set_aside(database_url: str, tmp_path: Path) -> None:
    async with queue(database_url, tmp_path) as node:
        await node.add("first", "second")
        with psycopg.connect(database_url) as connection:
            connection.execute("UPDATE arrival SET inbound = 'garbage' WHERE position = 1")
        await node.arrivals.catch_up(SCOPE)
        assert node.delivered == ["second"]
        assert await node.left() == 0
        assert (await node.spool.listing()).unreadable == (f"arrival-{shard_of(SCOPE)}-1",)


async def test_a_position_that_a_failover_has_freed_can_be_used_again(database_url: str, tmp_path: Path) -> None:
    """The node had read the message with that position. Its own commits are all on the new primary."""
    async with queue(database_url, tmp_path) as node:
        await node.add("lost")
        await node.arrivals.catch_up(SCOPE)
        with psycopg.connect(database_url) as connection:
            connection.execute("UPDATE shard_position SET last = 0")
        await node.add("next")
        await node.arrivals.catch_up(SCOPE)
        assert node.delivered == ["lost", "next"]
        assert await node.left() == 0


async def test_many_messages_that_wait_for_a_label_hold_up_no_other_conversation(
    database_url: str, tmp_path: Path
) -> None:
    """There are more of them than one read fetches, and they come before the message of the other conversation."""
    async with queue(database_url, tmp_path) as node:
        node.held = frozenset({"builds"})
        waiting = [inbound("held", event_id=str(number)) for number in range(_LIMIT + 1)]
        added = [AddArrival(scope=SCOPE, inbound=each, at=NOW) for each in waiting]
        await node.spool.commit(*added)
        other = inbound("other", event_id="other")
        scope = next(f"{SCOPE}{number}" for number in range(1_000) if shard_of(f"{SCOPE}{number}") > shard_of(SCOPE))
        await node.spool.commit(MarkSeen.of(other, NOW), AddArrival(scope=scope, inbound=other, at=NOW))
        await node.arrivals.read(range(SHARD_COUNT))
        await node.arrivals.catch_up(scope)
        assert node.delivered == ["held", "other"]
        node.arrivals.lanes.stop_all("")


async def test_a_message_in_the_wrong_scope_is_answered_in_its_own(tmp_path: Path, database_url: str) -> None:
    """The node that has accepted it had other settings."""
    async with cluster(tmp_path, database_url, "a") as nodes:
        await nodes.say(5, "m0")
        await nodes.answered(5, "m0")
        with psycopg.connect(database_url) as connection:
            (stored,) = connection.execute("SELECT inbound FROM inbox").fetchone() or (b"",)
            said = stored.replace(b"m0", b"m1")
            shard = shard_of("agent:other:main")
            connection.execute("UPDATE shard_position SET last = last + 1 WHERE shard = %s", (shard,))
            connection.execute(
                "INSERT INTO arrival (shard, position, scope, at, inbound) VALUES (%s, 1, 'agent:other:main', 0, %s)",
                (shard, said),
            )
        await nodes.answered(5, "m1")


async def test_a_node_that_hangs_in_a_transaction_holds_up_no_takeover(database_url: str, tmp_path: Path) -> None:
    """A paused process keeps its connection, and so the locks of its transaction."""
    create_tables(database_url)
    lease = node_lease(tmp_path, seconds=1.0)
    with (
        PostgresConnection(database_url, idle_timeout=lease.seconds / 2) as paused,
        PostgresConnection(database_url) as other,
    ):
        paused.begin()
        lease.take(paused)
        paused.commit()
        paused.begin()
        lease.fence(paused, 1, after=0)
        names: list[str] = []
        async with asyncio.timeout(TIMEOUT):
            while not names:
                await asyncio.sleep(0.1)
                other.begin()
                names = await asyncio.to_thread(membership.expire, {lease.boot}, other)
                other.commit()
        assert names == ["a"]
        with pytest.raises(psycopg.OperationalError):
            paused.commit()


def test_a_node_joins_again_if_the_answer_to_its_first_attempt_was_lost(database_url: str, tmp_path: Path) -> None:
    create_tables(database_url)
    lease = node_lease(tmp_path)
    with PostgresConnection(database_url) as connection:
        for _ in range(2):
            connection.begin()
            lease.take(connection)
            connection.commit()
        assert connection.execute("SELECT count(*) FROM node").fetchone() == (1,)


async def test_a_node_whose_event_loop_hangs_loses_its_lease(database_url: str, tmp_path: Path) -> None:
    create_tables(database_url)
    lease = node_lease(tmp_path, seconds=1.0)
    async with await Spool.open_database(database_url, tmp_path, lease=lease):
        with psycopg.connect(database_url, autocommit=True) as connection:
            deadline = monotonic() + TIMEOUT
            is_expired = False
            while not is_expired:  # Without an `await`, so this hangs.
                assert monotonic() < deadline
                found = connection.execute("SELECT renewed_at < now() - interval '1 s' FROM node").fetchone()
                is_expired = found == (True,)


async def test_a_stop_is_not_committed_for_a_conversation_of_another_node(database_url: str, tmp_path: Path) -> None:
    """Its jobs go back into their lane, and the next owner of the conversation gets the command."""
    async with queue(database_url, tmp_path) as node, asyncio.TaskGroup() as tasks:
        assert node.spool.shards is not None
        started, may_end = asyncio.Event(), asyncio.Event()

        async def run(_: Job) -> None:
            started.set()
            await may_end.wait()

        lanes = Lanes[Job](run, name="lane")
        lanes.open(tasks)
        for turn in ("t1", "t2"):
            lanes.put("lane", Job(turn=turn, inbound=inbound(turn), agent="main", scope=SCOPE, session=SCOPE, number=1))
        await started.wait()
        dropped = DroppedJobs(node.spool, [(lanes, "lane")], scope=SCOPE)
        del node.spool.shards.epochs[shard_of(SCOPE)]
        with pytest.raises(HeldElsewhere):
            await dropped.commit(dropped.answer("Stopped.", None, reason="test").operations)
        assert lanes.has_waiting("lane")
        may_end.set()


async def test_waiting_for_arrivals_ends_when_their_shard_is_given_back(database_url: str, tmp_path: Path) -> None:
    async with queue(database_url, tmp_path) as node:
        assert node.spool.shards is not None
        node.arrivals.lanes.stop_all("")  # As a daemon that stops.
        waiting = asyncio.create_task(node.arrivals.catch_up(SCOPE))
        await asyncio.sleep(0)
        assert not waiting.done()
        del node.spool.shards.epochs[shard_of(SCOPE)]
        assert await waiting is False
