"""How the nodes of a cluster share the shards if some of them need labels. Pure."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cluster.balance import quotas
from gateway.shards import SHARD_COUNT, hosts

LABELS = st.frozensets(st.sampled_from(["builds", "gpu", "mail"]))
NODES = st.dictionaries(st.sampled_from("abcde"), LABELS, min_size=1)
SHARDS = st.lists(LABELS, max_size=40)


def test_a_shard_without_labels_may_be_owned_by_all() -> None:
    assert hosts((), {"a": (), "b": ("builds",)}) == {"a", "b"}


def test_a_shard_is_owned_by_a_node_that_has_all_of_its_labels() -> None:
    nodes = {"a": ("builds",), "b": ("gpu",), "c": ("gpu", "builds", "mail")}
    assert hosts(("builds", "gpu"), nodes) == {"c"}


def test_a_shard_whose_label_no_node_has_is_owned_by_any() -> None:
    assert hosts(("builds",), {"a": (), "b": ("gpu",)}) == {"a", "b"}


def test_of_nodes_that_have_different_labels_of_a_shard_the_same_ones_are_chosen_everywhere() -> None:
    nodes = {"a": ("gpu",), "b": ("builds",), "c": ("builds",), "d": ()}
    assert hosts(("builds", "gpu"), nodes) == {"b", "c"}


@pytest.mark.parametrize(("nodes", "share"), [(1, 256), (2, 128), (3, 86), (5, 52)])
def test_without_labels_each_node_has_a_fair_share(nodes: int, share: int) -> None:
    everywhere = frozenset("abcde"[:nodes])
    assert quotas([everywhere] * SHARD_COUNT, everywhere) == {everywhere: dict.fromkeys(everywhere, share)}


def test_shards_that_any_node_may_own_make_up_for_those_that_one_node_must_own() -> None:
    builds, everywhere = frozenset("a"), frozenset("abc")
    found = quotas([builds] * 50 + [everywhere] * 206, everywhere)
    assert found == {builds: {"a": 50}, everywhere: {"a": 36, "b": 86, "c": 86}}
    found = quotas([builds] * 200 + [everywhere] * 56, everywhere)
    assert found == {builds: {"a": 200}, everywhere: {"a": 0, "b": 28, "c": 28}}


@given(nodes=NODES, shards=SHARDS, seed=st.integers(min_value=0, max_value=1_000))
def test_every_shard_finds_an_owner_and_stays_there(
    nodes: dict[str, frozenset[str]], shards: list[frozenset[str]], seed: int
) -> None:
    """Nodes take and give back in any order, from any state: after that, no node has a reason to do anything."""
    random = Random(seed)  # noqa: S311 - not a secret.
    groups = [hosts(labels, nodes) for labels in shards]
    share = quotas(groups, nodes)
    owners = [random.choice([None, *nodes]) for _ in shards]

    def owned(boot: str, number: int) -> int:
        return sum(owners[other] == boot for other, group in enumerate(groups) if group == groups[number])

    order = list(range(len(shards)))
    for changes_of in ("give back", "take"):
        random.shuffle(order)
        for number in order:
            owner, quota = owners[number], share[groups[number]]
            if changes_of == "give back" and owner is not None and owned(owner, number) > quota.get(owner, 0):
                owners[number] = None
            elif changes_of == "take" and owner is None:
                owners[number] = next(boot for boot, limit in quota.items() if owned(boot, number) < limit)
    for number, owner in enumerate(owners):
        assert owner in groups[number]
        assert owned(owner or "", number) <= share[groups[number]][owner or ""]
