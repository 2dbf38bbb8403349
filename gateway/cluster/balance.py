"""Which node owns how many shards. Pure: each node computes the same from the same rows.

Some shards need labels, so not every node may own them. All shards that the same nodes may own are a group, and each
node has a quota of each group. A node takes free shards below its quota and gives shards back above it. The quotas of a
group add up to all of its shards. So every shard finds an owner, and none goes back and forth.
"""

from collections import Counter
from collections.abc import Iterable

from gateway.shards import Group


def quotas(groups: Iterable[Group], nodes: Iterable[str]) -> dict[Group, dict[str, int]]:
    """Return how many shards of each group a node owns. `groups` has the group of each shard.

    Groups with few nodes come first. The others fill up the nodes that have the fewest shards by then.
    """
    owned = dict.fromkeys(nodes, 0)
    result: dict[Group, dict[str, int]] = {}
    counts = Counter(groups)
    for group in sorted(counts, key=lambda group: (len(group), sorted(group))):
        level = min(owned[boot] for boot in group)
        while sum(max(0, level - owned[boot]) for boot in group) < counts[group]:
            level += 1
        result[group] = {boot: max(0, level - owned[boot]) for boot in group}
        for boot, number in result[group].items():
            owned[boot] += number
    return result
