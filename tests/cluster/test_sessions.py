"""The sessions that a node has in memory: those of its shards."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from config import Settings
from gateway.cluster.identity import node_lease
from gateway.contract import Address, PeerKind
from gateway.sessions import SessionManager
from gateway.sessions.session import NewSession
from gateway.shards import Shards, shard_of
from gateway.spool import Spool, SpoolUnavailable
from gateway.storage import open_storage

ANN, BOB = ("agent:main:web:direct:ann", "agent:main:web:direct:bob")


@pytest.fixture
async def sessions(tmp_path: Path, database_url: str) -> AsyncIterator[SessionManager]:
    """Open the sessions of a node that owns all shards, with one of Ann and one of Bob."""
    settings = Settings.model_validate(
        {
            "gateway": {"data_dir": tmp_path},
            "storage": {"url": database_url},
            "http": {"token": "a-token-of-all-nodes"},
            "cluster": {"enabled": True},
        }
    )
    async with open_storage(settings, lease=node_lease(settings)) as (spool, storage):
        spool.shards = Shards()
        spool.shards.epochs.update(dict.fromkeys(range(256), 1))
        manager = await SessionManager.open(storage, settings.session, lambda: datetime.now(UTC), journal=spool)
        assert await manager.load_shards(range(256)) == 0
        for scope in (ANN, BOB):
            origin = Address(channel="web", kind=PeerKind.DIRECT, peer=scope.rpartition(":")[2])
            await manager.start_new(scope, agent="main", origin=origin, new=NewSession())
        yield manager
        await manager.close()


async def test_sessions_of_a_shard_are_forgotten_and_loaded_again(sessions: SessionManager) -> None:
    assert shard_of(ANN) != shard_of(BOB)
    await sessions.history(ANN)
    assert sessions.is_loaded(ANN)

    await sessions.unload_shards([shard_of(ANN)])
    assert list(sessions.scopes()) == [BOB]
    assert sessions.session_count == 1
    assert not sessions.is_loaded(ANN)
    assert sessions.find(ANN) is None

    assert await sessions.load_shards([shard_of(ANN)]) == 1
    assert sorted(sessions.scopes()) == [ANN, BOB]
    assert sessions.session_count == 2
    assert await sessions.load_shards([shard_of(ANN)]) == 1
    assert sessions.session_count == 2, "a shard that is loaded twice is counted once"


async def test_sessions_that_cannot_be_read_now_are_read_later(sessions: SessionManager) -> None:
    """The connection of the reader is lost, and that of the spool is not: the node must not end for that."""
    await sessions.unload_shards([shard_of(ANN)])
    journal = sessions._store._journal  # noqa: SLF001 - a fault.
    assert isinstance(journal, Spool)
    for reader in journal.readers:
        reader.abort()
    with pytest.raises(SpoolUnavailable):
        await sessions.load_shards([shard_of(ANN)])
