"""Arrivals: messages that other nodes have accepted for the shards of this one. They are accepted in their order."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from functools import partial

import structlog
from msgspec.structs import replace

from gateway.aio import backoff_delays
from gateway.contract import Arrival, Inbound, Verdict
from gateway.errors import HeldElsewhere, NeedsLabel, NotAccepted, RateLimited
from gateway.lanes import Lanes
from gateway.placement import Placement
from gateway.shards import Shards, shard_of
from gateway.spool import ArrivalRow, DropArrival, SetArrivalAside, Spool, SpoolUnavailable
from gateway.spool.spool import retry_while_unavailable

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_LIMIT = 500
"""Messages that one read fetches. The rest follows when these are accepted."""
_CHECK_INTERVAL = 0.05
"""Seconds between two looks whether only messages are left that wait for another node."""


class ArrivalQueue:
    """Reads arrivals and delivers them, one after the other in each scope."""

    def __init__(
        self,
        spool: Spool,
        shards: Shards,
        placement: Placement,
        deliver: Callable[[Inbound], Awaitable[Verdict]],
    ) -> None:
        self._spool = spool
        self._placement = placement
        self._held: set[str] = set()
        """Scopes whose next message waits for a node with other labels."""
        self._shards = shards
        self._deliver = deliver
        self._queued: dict[int, int] = {}
        """The last position of each shard that was put into a lane."""
        self._reading = asyncio.Lock()
        self.lanes: Lanes[ArrivalRow | asyncio.Event] = Lanes(self._accept, name="arrivals")

    async def read(self, shards: Collection[int]) -> None:
        """Queue the arrivals of some shards. Those that wait in a lane already are not queued again."""
        async with self._reading:
            while ready := [shard for shard in shards if self._shards.serves(f"shard:{shard}")]:
                if not self.lanes.keys():
                    # After a failover that has lost messages, the database gives their positions to new ones.
                    self._queued.clear()
                # Those that wait in a lane for a label may be more than one read fetches.
                after = {shard: self._queued.get(shard, 0) for shard in ready}
                rows = await retry_while_unavailable(partial(self._spool.arrivals, after, limit=_LIMIT))
                for row in rows:
                    # A shard that was given back in the meantime, and taken again, is read from its start.
                    known = self._queued.get(row.shard, 0)
                    if after[row.shard] <= known < row.position and row.shard in self._shards.epochs:
                        self._queued[row.shard] = row.position
                        self.lanes.put(row.scope, row)
                if len(rows) < _LIMIT:
                    return
                while self.busy_scopes():  # noqa: ASYNC110 - it is rare, and ends soon.
                    await asyncio.sleep(_CHECK_INTERVAL)

    def busy_scopes(self) -> set[str]:
        """Return the scopes whose messages are being accepted, without those that wait for another node."""
        return set(self.lanes.keys()) - self._held

    async def catch_up(self, scope: str) -> bool:
        """Return True when the messages of a scope that have arrived by now are accepted.

        Returns False if another node has to accept them, because of its labels or because this one gives them back.
        """
        await self.read([shard_of(scope)])
        done = asyncio.Event()
        self.lanes.put(scope, done)
        while not done.is_set():
            if scope in self._held or not self._shards.serves(scope):
                return False
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_INTERVAL):
                    await done.wait()
        return True

    def forget(self, shards: Collection[int]) -> None:
        """Forget positions of shards that this node does not own any more."""
        for shard in shards:
            self._queued.pop(shard, None)

    async def _accept(self, row: ArrivalRow | asyncio.Event) -> None:
        if isinstance(row, asyncio.Event):
            row.set()
            return
        arrival = Arrival(scope=row.scope, position=row.position)
        if row.inbound is None:
            await self._end(SetArrivalAside(arrival=arrival, reason="This version of Gatehouse can't read it."), row)
            return
        for delay in backoff_delays():
            if row.shard not in self._shards.epochs:  # Its next owner reads it again.
                return
            try:
                verdict = await self._deliver(replace(row.inbound, arrival=arrival))
            except NeedsLabel as needs:
                await self._wait_for_node(row, needs.labels)
            except HeldElsewhere:  # As above.
                return
            except RateLimited as limit:  # The program was told that it is accepted, so it has to wait.
                await asyncio.sleep(max(delay, limit.retry_after or 0.0))
            except NotAccepted as failure:
                if not isinstance(failure.__cause__, SpoolUnavailable):
                    # Of a program, which was told that it is accepted. So the operator has to know.
                    await self._end(SetArrivalAside(arrival=arrival, reason=str(failure)), row)
                    return
                await asyncio.sleep(delay)
            else:
                # Accepting it has removed its row. A message that was refused or ignored may still have one.
                if verdict is not Verdict.ACCEPTED or row.inbound.edits is not None:
                    await self._end(DropArrival(arrival=arrival), row)
                return

    async def _end(self, operation: DropArrival | SetArrivalAside, row: ArrivalRow) -> None:
        if isinstance(operation, SetArrivalAside):
            log.error("arrival_set_aside", shard=row.shard, position=row.position, reason=operation.reason)
        with suppress(HeldElsewhere):  # Its next owner does the same.
            await retry_while_unavailable(partial(self._spool.commit, operation, scope=row.scope))

    async def _wait_for_node(self, row: ArrivalRow, labels: frozenset[str]) -> None:
        """Return when the shard belongs to another node, or the message does not wait for one any more."""
        self._held.add(row.scope)
        try:
            while row.shard in self._shards.epochs and self._placement.must_wait(row.scope, labels):
                await self._placement.changed()
        finally:
            self._held.discard(row.scope)
