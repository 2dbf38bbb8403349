"""Which node may work on a conversation, as the owner of its shard decides it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from config import Settings
from gateway.access.rules import Live
from gateway.cluster import membership
from gateway.cluster.identity import shared_digest
from gateway.database.migrate import HEAD
from gateway.database.node_lease import NodeLease
from gateway.errors import HeldElsewhere, NeedsLabel, NotAccepted
from gateway.placement import NoNode, Placement
from gateway.repos.repositories import Repositories
from gateway.shards import SHARD_COUNT, Shards, shard_of
from gateway.spool import Spool
from tests.spool.postgres_tables import create_tables

SCOPE = "agent:main:telegram:direct:5"
SHARD = shard_of(SCOPE)
BUILDS, GPU = frozenset({"builds"}), frozenset({"gpu"})
NONE: frozenset[str] = frozenset()


def settings(folder: Path, **cluster: object) -> Settings:
    return Settings.model_validate(
        {
            "gateway": {"data_dir": folder / "data"},
            "http": {"token": "a-token-of-all-nodes"},
            "storage": {"url": "postgresql://localhost/x"},
            "cluster": {"enabled": True, **cluster},
            "repos": [{"id": "site", "path": folder / "site", "label": "builds"}],
            "agents": {"artist": {"label": "gpu"}},
        }
    )


@asynccontextmanager
async def placement(url: str, folder: Path, *own: str, label_timeout: float = 30.0) -> AsyncIterator[Placement]:
    """Yield the placement of a node that owns all shards."""
    create_tables(url)
    lease = NodeLease(folder, name="a", seconds=60.0, version="1", schema=HEAD, config="", labels=own)
    async with await Spool.open_database(url, folder, lease=lease) as spool:
        spool.shards = Shards()
        wanted = {tuple(range(SHARD_COUNT)): SHARD_COUNT}
        spool.shards.epochs = await spool.run(lambda connection: membership.claim(lease.boot, wanted, connection))
        yield Placement(Live(settings(folder, label_timeout=label_timeout)), spool, own)


async def stored(found: Placement) -> frozenset[str]:
    """Return the labels of the shard in the database."""
    survey = await found._spool.run(lambda connection: membership.survey([], connection))  # noqa: SLF001 - its own spool.
    return survey.shards[SHARD].labels


async def test_what_a_session_needs_follows_from_its_agent_and_its_repository(
    tmp_path: Path, database_url: str
) -> None:
    async with placement(database_url, tmp_path) as found:
        assert found.needed("main") == found.needed("main", "other", None, "") == NONE
        assert found.needed("main", "site") == BUILDS
        assert found.needed("artist", "site") == BUILDS | GPU


async def test_without_a_cluster_labels_mean_nothing(tmp_path: Path, database_url: str) -> None:
    async with placement(database_url, tmp_path) as found:
        single = Placement(Live(settings(tmp_path, enabled=False)), found._spool)  # noqa: SLF001 - as above.
        assert not single.is_used
        assert single.needed("artist", "site") == NONE


async def test_the_owner_stores_a_label_before_it_works_on_a_conversation(tmp_path: Path, database_url: str) -> None:
    async with placement(database_url, tmp_path, "builds", "gpu") as found:
        found.update({"a": BUILDS | GPU}, {}, {})
        await found.require(SCOPE, BUILDS)
        await found.require(SCOPE, GPU)
        assert await stored(found) == BUILDS | GPU


async def test_an_owner_without_the_label_gives_the_conversation_away(tmp_path: Path, database_url: str) -> None:
    async with placement(database_url, tmp_path, label_timeout=0) as found:
        woken: list[bool] = []
        found.on_pinned = lambda: woken.append(True)
        found.update({"a": NONE, "b": BUILDS}, {}, {})
        with pytest.raises(NeedsLabel):
            await found.require(SCOPE, BUILDS)
        with pytest.raises(NeedsLabel):
            await found.require_now(SCOPE, BUILDS)
        assert woken == [True]
        assert await stored(found) == BUILDS


async def test_without_a_node_messages_wait_and_programs_do_not(tmp_path: Path, database_url: str) -> None:
    async with placement(database_url, tmp_path) as found:
        found.update({"a": NONE, "b": GPU}, {}, {})
        assert found.absent == BUILDS
        with pytest.raises(NeedsLabel):
            await found.require(SCOPE, BUILDS)
        with pytest.raises(NotAccepted, match="label builds"):
            await found.require_now(SCOPE, BUILDS)
        with pytest.raises(NotAccepted, match="label builds"):
            found.require_anywhere(BUILDS)


async def test_after_the_timeout_messages_are_refused_until_a_node_has_the_label(
    tmp_path: Path, database_url: str
) -> None:
    async with placement(database_url, tmp_path, label_timeout=0) as found:
        found.waiting_turns["turn"] = (SCOPE, BUILDS)
        found.update({"a": NONE}, {}, {})
        with pytest.raises(NoNode, match="label builds"):
            await found.require(SCOPE, BUILDS)
        assert found.due_turns() == {"turn"}
        found.update({"a": NONE, "b": BUILDS}, {SHARD: BUILDS}, {})
        assert found.must_wait(SCOPE, BUILDS)


async def test_of_two_labels_that_meet_in_a_shard_one_is_served(tmp_path: Path, database_url: str) -> None:
    async with placement(database_url, tmp_path, label_timeout=0) as found:
        found.update({"a": NONE, "b": BUILDS, "c": GPU}, {SHARD: BUILDS | GPU}, {})
        assert found.must_wait(SCOPE, BUILDS)
        assert found.is_overdue(SCOPE, GPU)


async def test_a_new_session_is_started_at_a_node_with_its_labels(tmp_path: Path, database_url: str) -> None:
    async with placement(database_url, tmp_path) as found:
        found.update({"a": NONE, "b": BUILDS}, {}, {1: "a", 2: "b", 3: "a"})
        found.require_anywhere(NONE)
        with pytest.raises(HeldElsewhere) as held:
            found.require_anywhere(BUILDS)
        assert shard_of(held.value.scope) == 2


async def test_a_repository_of_other_nodes_is_not_looked_for_here(tmp_path: Path, database_url: str) -> None:
    async with placement(database_url, tmp_path) as found:
        live = Live(settings(tmp_path))
        repos, repo = Repositories(live, found), live.settings.repos[0]
        found.update({"a": NONE, "b": BUILDS}, {}, {})
        assert repos.describe_elsewhere(repo) == ""
        found.update({"a": NONE}, {}, {})
        assert repos.describe_elsewhere(repo) == "no node of the cluster with the label builds is running"
    async with placement(database_url, tmp_path, "builds") as found:
        assert Repositories(live, found).describe_elsewhere(repo) is None


def test_nodes_may_have_different_labels_but_need_the_same(tmp_path: Path) -> None:
    one, two = settings(tmp_path, labels=["builds"]), settings(tmp_path, labels=[])
    assert shared_digest(one) == shared_digest(two)
    other = one.model_copy(update={"repos": (one.repos[0].model_copy(update={"label": None}),)})
    assert shared_digest(one) != shared_digest(other)
