"""Replies of conversations that another node has taken over."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.cluster import membership
from gateway.contract import Channel
from gateway.database.migrate import HEAD
from gateway.database.node_lease import NodeLease
from gateway.outbound.delivery import Delivery
from gateway.shards import SHARD_COUNT, Shards, shard_of
from gateway.spool import Spool
from tests.outbound.harness import HELLO, Time, Wire, nothing_kept
from tests.spool.postgres_tables import create_tables

SCOPE = "agent:main:wire:direct:ada"


class DroppingRepeats(Wire):
    """Drops repeats, so no send is marked in the outbox."""

    repeats_dropped_for = 300.0


class Node:
    """The delivery of a node that owns all shards."""

    def __init__(self, spool: Spool, shards: Shards, channels: dict[tuple[str, str], Channel]) -> None:
        self.spool = spool
        self.shards = shards
        self.delivery = Delivery(channels, spool, now=Time(), file_path=nothing_kept)

    async def say(self) -> None:
        parts = self.delivery.compose(HELLO, key="k", scope=SCOPE)
        await self.spool.commit(*parts, scope=SCOPE)
        self.delivery.post(parts)
        await self.delivery.chats.drained()

    async def recover(self) -> None:
        for row in (await self.spool.recover([shard_of(SCOPE)])).outbox:
            self.delivery.recover(row)
        await self.delivery.chats.drained()


@asynccontextmanager
async def delivering(url: str, folder: Path, channels: dict[tuple[str, str], Channel]) -> AsyncIterator[Node]:
    create_tables(url)
    lease = NodeLease(folder, name="a", seconds=60.0, version="1", schema=HEAD, config="")
    async with await Spool.open_database(url, folder, lease=lease) as spool, asyncio.TaskGroup() as tasks:
        shards = spool.shards = Shards()
        wanted = {tuple(range(SHARD_COUNT)): SHARD_COUNT}
        shards.epochs = await spool.run(lambda connection: membership.claim(lease.boot, wanted, connection))
        node = Node(spool, shards, channels)
        node.delivery.chats.open(tasks)
        async with asyncio.timeout(60):
            yield node


async def test_a_message_that_waits_for_its_channel_moves_with_its_shard(database_url: str, tmp_path: Path) -> None:
    channels: dict[tuple[str, str], Channel] = {}
    wire = Wire()
    async with delivering(database_url, tmp_path, channels) as node:
        await node.say()
        # The node gives the shard back, and takes it again.
        node.delivery.forget([shard_of(SCOPE)])
        await node.recover()
        channels["wire", "default"] = wire
        node.delivery.channels_changed()
        await node.delivery.chats.drained()
    assert wire.tried == ["k"]


@pytest.mark.parametrize("wire", [Wire(), DroppingRepeats()])
async def test_a_node_sends_nothing_for_a_shard_that_it_has_given_back(
    database_url: str, tmp_path: Path, wire: Wire
) -> None:
    async with delivering(database_url, tmp_path, {("wire", "default"): wire}) as node:
        parts = node.delivery.compose(HELLO, key="k", scope=SCOPE)
        await node.spool.commit(*parts, scope=SCOPE)
        del node.shards.epochs[shard_of(SCOPE)]
        node.delivery.post(parts)
        await node.delivery.chats.drained()
    assert wire.tried == []


def test_messages_without_a_conversation_belong_to_a_shard_that_has_been_read() -> None:
    """While a shard is being read, its new rows would be found as those of the last owner, and be sent twice."""
    shards = Shards()
    shards.epochs = {3: 1, 5: 1, 7: 1}
    shards.loading = {3}
    shards.leaving = {5}
    assert shards.home == "shard:7"
    shards.loading = {3, 5, 7}
    assert shards.home == "shard:3"
