"""`ClusterNode`: takes shards and posts, gives them back, and notices within a second what other nodes have done.

The life of a shard at a node:

1. The node claims it with a transaction. From then on it owns the shard, but accepts no message of it yet.
2. It reads the sessions of the shard, and continues the turns and replies of the last owner, as after a restart.
3. It accepts the messages that have arrived in the meantime, in their order, and from then on new ones.
4. To give it back, it accepts no more messages, and waits until nothing of the shard runs or waits to be sent. Then it
   gives the shard back with a transaction that comes after all others of the shard, and forgets its sessions.

A node that dies keeps its shards until its lease expires. A node that loses the database stops before that.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from math import ceil
from time import monotonic
from typing import Protocol

import structlog

from gateway.cluster import membership
from gateway.cluster.arrivals import ArrivalQueue
from gateway.cluster.balance import quotas
from gateway.cluster.listener import Listener
from gateway.cluster.membership import Survey
from gateway.cluster.posts import Posts
from gateway.database.node_lease import TAKEN_OVER, NodeLease
from gateway.observability.status import ClusterReport
from gateway.placement import Placement
from gateway.sessions import SessionManager
from gateway.shards import SHARD_COUNT, Group, Shards, hosts, shard_of
from gateway.spool import ChangeShardLabels, Spool, SpoolBroken, SpoolUnavailable
from gateway.spool.spool import retry_while_unavailable

log: structlog.stdlib.BoundLogger = structlog.get_logger()

POLL_INTERVAL = 1.0
"""Seconds after which a node looks at the cluster, if no notification comes."""
CLOSING_TIME = 3.0
"""Seconds before the end of the wait for running turns, from which on a leaving node accepts nothing more."""
LINGER_TIME = 1.0
"""Seconds for which a leaving node tries to send its last replies, before it gives back their shards with the rest."""
SHARDS_PER_STEP = 32
"""Shards that a node loads before it answers in them. Loading all may take seconds."""
POST_PATIENCE = 5.0
"""Seconds for which a post may be free, or held without use. Then it is taken beyond the share, or given back."""
LEAVE_INTERVAL = 0.05
"""Seconds between two looks for shards whose work has ended, while a node leaves or has to give some to others."""
UNPIN_INTERVAL = 60.0
"""Seconds between two looks for labels that no session of a shard needs any more."""
_SHARD_NUMBERS = frozenset(map(str, range(SHARD_COUNT)))


class NodeWork(Protocol):
    """The work of the conversations that a node owns. The daemon has it."""

    def busy_scopes(self) -> Collection[str]:
        """Return the scopes with work in memory."""

    def is_drained(self) -> bool:
        """Return whether no turn or command runs, apart from those that wait for a person."""

    async def recover_work(self, shards: Sequence[int]) -> None:
        """Continue the work of shards that were taken."""

    async def recover_turns(self, turns: Collection[str]) -> None:
        """Continue turns that have waited in vain for a node with a label."""

    def shards_opened(self) -> None:
        """Take note that this node serves more shards."""

    def shards_moved(self, shards: Collection[int]) -> None:
        """Forget what belongs to shards that other nodes own now."""

    async def read_facts(self, prefixes: Collection[str]) -> None:
        """Read facts that have changed, of those that all nodes keep in memory."""

    async def deliver_revived(self) -> None:
        """Send replies that a person has revived."""

    def suspend_work(self) -> None:
        """Stop everything. The next owners continue it."""


class ClusterNode:
    """`on_left` is called with the URL of a node that has left the cluster or died."""

    def __init__(
        self,
        *,
        lease: NodeLease,
        spool: Spool,
        shards: Shards,
        sessions: SessionManager,
        arrivals: ArrivalQueue,
        posts: Posts,
        placement: Placement,
        on_left: Callable[[str], None],
    ) -> None:
        self.lease = lease
        self.shards = shards
        self.posts = posts
        self.arrivals = arrivals
        self.survey: Survey | None = None
        """The state of the cluster a moment ago."""
        self.takeovers = 0
        """How often this node has taken over the shards of one that was dead."""
        self._spool = spool
        self._sessions = sessions
        self._placement = placement
        placement.on_pinned = lambda: self._wake.set()  # noqa: PLW0108 - the event is made below.
        self._misplaced: set[int] = set()
        """Shards of this node that others have to own, because of their labels."""
        self._unpin_at = monotonic() + UNPIN_INTERVAL
        self._on_left = on_left
        self._work: NodeWork
        self._wake = asyncio.Event()
        self._arrived: set[int] = set()
        self._has_arrivals = asyncio.Event()
        self._facts: Mapping[str, int] = {}
        """By prefix, the versions of the facts that were read."""
        self._unsettled_facts: set[str] = set()
        self._changed = asyncio.Event()
        """Set, and replaced, with each survey, and when this node has read shards."""
        self._changing = asyncio.Lock()
        self._idle_posts: dict[membership.Post, float] = {}
        """Since when posts that this node wants are free, and posts that it holds have no channel."""
        self._is_leaving = False
        self._last_takeover_at: datetime | None = None
        self._last_takeover_seconds = 0.0
        self.listener: Listener | None = None

    def report(self) -> ClusterReport:
        """Return what this node knows of its cluster, for the status and the metrics."""
        nodes = {} if self.survey is None else self.survey.nodes
        shards = () if self.survey is None else self.survey.shards
        arrived = {} if self.survey is None else self.survey.arrived
        own = nodes.get(self.lease.boot)
        return ClusterReport(
            node=self.lease.name,
            nodes=sum(not node.is_expired for node in nodes.values()),
            shards=len(self.shards),
            posts=len(self.posts.held),
            free_shards=sum(row.owner not in nodes for row in shards),
            arrivals=self.arrivals.lanes.waiting,
            waiting={shard: arrived.get(shard, 0) for shard in self.shards},
            oldest_seconds=0.0 if self.survey is None else self.survey.oldest_seconds,
            commits=dict(self.shards.commits),
            takeovers=self.takeovers,
            last_takeover_at=self._last_takeover_at,
            last_takeover_seconds=self._last_takeover_seconds,
            lease_left_seconds=self._spool.renewed_at + self.lease.seconds - monotonic(),
            is_leaving=self._is_leaving,
            absent_labels=tuple(sorted(self._placement.absent)),
            # Another version has other defaults and other keys, so its digest says nothing.
            has_other_settings=own is not None
            and any(node.config != own.config for node in nodes.values() if node.version == own.version),
        )

    def others(self) -> dict[str, str]:
        """Return the addresses of the other nodes that are alive, by their names."""
        nodes = () if self.survey is None else self.survey.nodes.values()
        return {each.name: each.address for each in nodes if each.boot != self.lease.boot and not each.is_expired}

    def notified(self, payload: str) -> None:
        """Take a notification of the database. One of a newer version that this one does not know only wakes it."""
        kind, _, number = payload.partition(" ")
        if kind == "arrival" and number in _SHARD_NUMBERS:
            self._note_arrivals([int(number)])
        else:
            self._wake.set()

    async def start(self, address: str, work: NodeWork) -> None:
        """Join the other nodes, take a share of the shards, and continue their work. Call it once, before `run`.

        Waits for the database, but no longer than the lease lasts. Raises `SpoolBroken` then, in a group.
        """
        self._work = work
        announce = partial(membership.announce, self.lease.boot, address)
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(self._watch_lease(), name="cluster:lease")
            await retry_while_unavailable(partial(self._spool.run, announce))
            await retry_while_unavailable(self._look)
            watch.cancel()

    async def run(self) -> None:
        """Follow the cluster until cancelled. Raises `SpoolBroken` if this node has to stop."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_lease(), name="cluster:lease")
            tasks.create_task(self._read_arrivals(), name="cluster:arrivals")
            while True:
                self._wake.clear()
                with suppress(SpoolUnavailable):
                    await self._look()
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_INTERVAL):
                        await self._woken()

    async def _woken(self) -> None:
        """Return after a notification, or when a shard that others have to own is idle."""
        while not self._idle(self._misplaced):
            with suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_INTERVAL if self._misplaced else None):
                    await self._wake.wait()
                    return

    async def leave(self, max_wait: float) -> None:
        """Give back posts and shards: idle ones at once, and the others when their work ends, or after `max_wait`.

        A shard with a long turn serves its other conversations until then. Those that are left when this returns have
        questions to people or replies to a platform that is out of reach. They are free when the lease is released.
        """
        self._is_leaving = True
        deadline = monotonic() + max_wait
        lingers_until: float | None = None
        with suppress(SpoolUnavailable):
            async with self._changing:  # A look that is under way may take one more post.
                await self._spool.run(partial(membership.start_leaving, self.lease.boot))
                await self._give_back_posts(set(self.posts.held))
            while self.shards.epochs:
                async with self._changing:
                    now = monotonic()
                    if now > deadline - CLOSING_TIME:
                        self.shards.leaving.update(self.shards.epochs)
                    await self._give_back(self._idle(self.shards.epochs))
                if not self._work.is_drained():
                    lingers_until = None
                elif lingers_until is None:
                    lingers_until = now + LINGER_TIME
                if now > deadline or (lingers_until is not None and now > lingers_until):
                    return
                await asyncio.sleep(LEAVE_INTERVAL)

    async def release(self) -> None:
        """Give back all shards that are left, when no more work of them is under way or can begin."""
        with suppress(SpoolUnavailable):  # The lease ends, too.
            async with self._changing:
                await self._give_back(list(self.shards.epochs))

    async def locate(self, scope: str) -> str | None:
        """Return the URL of the node that owns a scope; None if it is this node. Waits until there is one."""
        shard = shard_of(scope)
        while not self.shards.serves(scope):
            if self.survey is not None:
                owner = self.survey.shards[shard].owner
                node = self.survey.nodes.get(owner) if owner is not None else None
                if node is not None and node.boot != self.lease.boot:
                    return node.address
            if self._is_leaving:  # `run` may have ended. The last requests are for the next owner.
                await asyncio.sleep(LEAVE_INTERVAL)
                with suppress(SpoolUnavailable):
                    self.survey = await self._spool.run(partial(membership.survey, []))
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_INTERVAL):
                    await self._changed.wait()
        return None

    def _tell_waiting(self) -> None:
        """Let those who wait in `locate` look again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _look(self) -> None:
        """Compare the cluster with this node, and do what follows from it."""
        self._misplaced = set()
        async with self._changing:
            looked_at, silent = monotonic(), 0.0
            found = await self._spool.run(partial(membership.survey, list(self.shards.epochs)))
            if self.lease.boot not in found.nodes:
                raise SpoolBroken(TAKEN_OVER)
            if (found.dead - {self.lease.boot}) and not self._is_leaving:
                names = await self._spool.run(partial(membership.expire, found.dead - {self.lease.boot}))
                if names:
                    self.takeovers += 1
                    silent = max(node.silent_ms for node in found.nodes.values() if node.is_expired) / 1_000
                    log.warning("nodes_expired", nodes=names)
                found = await self._spool.run(partial(membership.survey, list(self.shards.epochs)))
            if self.survey is not None:
                present = {node.address for node in found.nodes.values()}
                for address in {node.address for node in self.survey.nodes.values()} - present - {""}:
                    self._on_left(address)
            self.survey = found
            self._tell_waiting()
            self._placement.update(
                {node.boot: node.labels for node in found.active},
                {row.number: row.labels for row in found.shards if row.labels},
                {row.number: row.owner for row in found.shards if row.owner is not None},
            )
            # Facts that have changed are read a second time with the next look: a local change that was being committed
            # may have come between.
            outdated = {prefix for prefix, version in found.facts.items() if self._facts.get(prefix) != version}
            if outdated or self._unsettled_facts:
                await self._work.read_facts(outdated | self._unsettled_facts)
                self._facts, self._unsettled_facts = found.facts, outdated
            if found.has_revived:
                await self._work.deliver_revived()
            self._note_arrivals(found.arrived)
            if found.nodes[self.lease.boot].config != self.lease.config:
                change = partial(membership.change_config, self.lease.boot, self.lease.config)
                await self._spool.run(change)
            if due := self._placement.due_turns():
                await self._work.recover_turns(due)
            if not self._is_leaving:
                await self._unpin(found)
                await self._balance(found)
            if silent:
                self._last_takeover_at = datetime.now(UTC)
                self._last_takeover_seconds = silent + monotonic() - looked_at

    async def _balance(self, found: Survey) -> None:
        """Take free shards up to a fair share, or give back idle ones beyond that. The same for posts."""
        # Rows that name this node without its knowledge: it has died between the claim and the answer to it.
        strays = [
            row.number
            for row in found.shards
            if row.owner == self.lease.boot and self.shards.epochs.get(row.number) != row.epoch
        ]
        if strays:
            await self._spool.run(partial(membership.give_back, self.lease.boot, strays))
        lost = [row.number for row in found.shards if row.number in self.shards.epochs and row.owner != self.lease.boot]
        if lost:
            raise SpoolBroken("Another node owns shards of this one. Restart the gateway: it goes on with the others.")
        await self._balance_shards(found, strays)
        active = max(1, len(found.active))
        await self._balance_posts(found, active)

    async def _balance_posts(self, found: Survey, active: int) -> None:
        """Take free posts up to a fair share, and all that no other node takes. Give back those without a channel."""
        fair = ceil(max(1, len({*found.posts, *self.posts.wanted})) / active)
        # Like stray shards: the connection was lost between a commit and the answer to it.
        strays = {post for post, owner in found.posts.items() if owner == self.lease.boot} - self.posts.held
        if strays:
            await self._spool.run(partial(membership.give_back_posts, self.lease.boot, strays))
        free = {post for post in self.posts.wanted if found.posts.get(post) is None}
        now = monotonic()
        self._idle_posts = {post: self._idle_posts.get(post, now) for post in free | self.posts.unused}
        overdue = {post for post, since in self._idle_posts.items() if now - since > POST_PATIENCE}
        await self._give_back_posts(overdue & self.posts.unused)
        for post in sorted(free):
            is_due = len(self.posts.held) < fair or post in overdue
            if is_due and await self._spool.run(partial(membership.claim_post, self.lease.boot, post)):
                self.posts.gain(post)

    async def _balance_shards(self, found: Survey, strays: Collection[int]) -> None:
        boot, nodes = self.lease.boot, {node.boot: node.labels for node in found.active}
        if boot not in nodes:
            return
        groups = {row.number: hosts(row.labels, nodes) for row in found.shards}
        share = {group: quota.get(boot, 0) for group, quota in quotas(groups.values(), nodes).items()}
        own: dict[Group, list[int]] = defaultdict(list)
        free: dict[Group, list[int]] = defaultdict(list)
        for number, group in groups.items():
            if number in self.shards.epochs:
                own[group].append(number)
            elif found.shards[number].owner is None or number in strays:
                free[group].append(number)
        idle = set(self._idle(self.shards.epochs))
        surplus = [
            number
            for group, numbers in own.items()
            for number in sorted(idle.intersection(numbers))[: max(0, len(numbers) - share[group])]
        ]
        if surplus:
            self.shards.leaving.update(surplus)
            await self._give_back(surplus)
        self._misplaced = {number for number in self.shards.epochs if boot not in groups[number]}
        wanted = {
            tuple(numbers): share[group] - len(own[group])
            for group, numbers in free.items()
            if len(own[group]) < share[group]
        }
        if wanted:
            await self._open(await self._spool.run(partial(membership.claim, boot, wanted)))

    async def _unpin(self, found: Survey) -> None:
        """Remove labels from shards of this node if no session needs them any more."""
        if monotonic() < self._unpin_at:
            return
        self._unpin_at = monotonic() + UNPIN_INTERVAL
        pinned = {row.number: row.labels for row in found.shards if row.labels}
        quiet = set(self._idle(self.shards.epochs.keys() & pinned)).difference(found.arrived)
        needed = self._placement.needed_by_shards(self._sessions, quiet)
        for shard in sorted(quiet):
            if unneeded := pinned[shard] - needed.get(shard, frozenset()):
                await self._spool.commit(ChangeShardLabels(shard=shard, remove=unneeded), scope=f"shard:{shard}")
                log.info("shard_unpinned", shard=shard, labels=sorted(unneeded))

    async def _pin(self, shards: Collection[int]) -> None:
        """Store the labels that the sessions of some shards need: the settings may have changed since they started."""
        for shard, labels in self._placement.needed_by_shards(self._sessions, shards).items():
            if missing := labels - self._placement.pins.get(shard, frozenset()):
                pin = ChangeShardLabels(shard=shard, add=missing)
                await retry_while_unavailable(partial(self._spool.commit, pin, scope=f"shard:{shard}"))
                self._placement.pins[shard] = self._placement.pins.get(shard, frozenset()) | missing
                self._wake.set()

    async def _open(self, taken: Mapping[int, int]) -> None:
        """Load the sessions and continue the work of shards that this node has claimed."""
        if not taken:
            return
        started = monotonic()
        numbers = sorted(taken)
        self.shards.loading.update(numbers)
        self.shards.epochs.update(taken)
        count = 0
        for first in range(0, len(numbers), SHARDS_PER_STEP):
            step = numbers[first : first + SHARDS_PER_STEP]
            count += await retry_while_unavailable(partial(self._sessions.load_shards, step))
            await self._pin(step)
            await retry_while_unavailable(partial(self._work.recover_work, step))
            self.shards.loading.difference_update(step)
            self._tell_waiting()
            self._note_arrivals(step)
        self._work.shards_opened()
        log.info(
            "shards_taken",
            shards=len(numbers),
            owned=len(self.shards),
            sessions=count,
            took_ms=round((monotonic() - started) * 1000),
        )

    def _idle(self, shards: Collection[int]) -> list[int]:
        busy = {shard_of(scope) for scope in self._work.busy_scopes()}
        return [
            shard
            for shard in shards
            if shard not in busy and shard not in self.shards.loading and not self.shards.is_committing(shard)
        ]

    async def _give_back(self, shards: Collection[int]) -> None:
        """Give back shards for which nothing is under way. No `await` before they are no longer ours."""
        if not shards:
            return
        for shard in shards:
            self.shards.epochs.pop(shard, None)
            self.shards.leaving.discard(shard)
        self.arrivals.forget(shards)
        self._placement.forget(shards)
        self._work.shards_moved(shards)
        self.shards.moved(shards)
        await retry_while_unavailable(
            partial(self._spool.run, partial(membership.give_back, self.lease.boot, list(shards)))
        )
        log.info("shards_given_back", shards=len(shards), owned=len(self.shards))
        await self._sessions.unload_shards(shards)

    async def _give_back_posts(self, posts: Collection[membership.Post]) -> None:
        if posts:
            await self.posts.stop(posts)
            await self._spool.run(partial(membership.give_back_posts, self.lease.boot, posts))

    def _note_arrivals(self, shards: Collection[int]) -> None:
        self._arrived.update(shard for shard in shards if shard in self.shards.epochs)
        if self._arrived:
            self._has_arrivals.set()

    async def _read_arrivals(self) -> None:
        while True:
            await self._has_arrivals.wait()
            self._has_arrivals.clear()
            shards, self._arrived = self._arrived, set()
            await self.arrivals.read(shards)

    async def _watch_lease(self) -> None:
        """Stop this node before its lease ends, if the database cannot be reached to renew it."""
        while True:
            left = self._spool.safe_seconds_left
            if left <= 0:
                reason = (
                    f"The lease could not be renewed for {self.lease.safe_seconds:g} seconds: the database could not "
                    "be reached, or this machine was paused. Other nodes may take over, so this node has stopped."
                )
                self._work.suspend_work()
                self._spool.give_up(reason)
                await self.posts.stop(set(self.posts.held))
                raise SpoolBroken(reason)
            await asyncio.sleep(max(0.01, left / 2))
