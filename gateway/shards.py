"""Shards: the fixed parts into which a cluster divides all scopes. Each node of the cluster owns some of them.

The function `gatehouse_shard` of the database computes the same number as `shard_of`.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from hashlib import sha256

from gateway.errors import HeldElsewhere

SHARD_COUNT = 256
"""Fixed for all time: a scope must stay in its shard."""

Group = frozenset[str]
"""The nodes that may own some shards."""

_NAMED_SHARD = re.compile(r"shard:([0-9]+)")


@lru_cache(maxsize=65_536)
def shard_of(scope: str) -> int:
    """Return the shard of a scope. The name `shard:7` stands for all of shard 7."""
    if (named := _NAMED_SHARD.fullmatch(scope)) is not None:
        return int(named[1])
    return sha256(scope.encode("utf-8", "surrogatepass")).digest()[0]


def hosts(needed: Collection[str], nodes: Mapping[str, Collection[str]]) -> Group:
    """Return the nodes that may own a shard whose sessions need some labels: those that have all of them.

    If no node has all, those that have the most, so that someone serves the other sessions of the shard. `nodes` has
    the labels of each node.
    """
    if not needed or not nodes:
        return frozenset(nodes)

    def rank(boot: str) -> tuple[int, list[str]]:
        matched = sorted(set(needed).intersection(nodes[boot]))
        return (-len(matched), matched)  # The names decide between nodes with as many.

    best = min(map(rank, nodes))
    return frozenset(boot for boot in nodes if rank(boot) == best)


class Shards:
    """The shards that this node owns. Use it from the event loop."""

    def __init__(self) -> None:
        self.epochs: dict[int, int] = {}
        """By shard, how often it had been taken by a node when this one took it."""
        self.loading: set[int] = set()
        """Shards that this node owns, and whose sessions and messages it is still reading."""
        self.leaving: set[int] = set()
        """Shards that this node owns until their last turn has ended. New messages wait for the next owner."""
        self.commits: Counter[int] = Counter()
        """How many changes of conversations were stored here, by shard."""
        self._commits: Counter[int] = Counter()
        self.moves = 0
        """How often this node has given shards back."""
        self._watchers: dict[int, list[Callable[[], None]]] = {}

    def __iter__(self) -> Iterator[int]:
        return iter(self.epochs)

    def __len__(self) -> int:
        return len(self.epochs)

    def owns(self, scope: str) -> bool:
        return shard_of(scope) in self.epochs

    def serves(self, scope: str) -> bool:
        """Return whether this node owns the shard and keeps it, and has read it, so that it can accept messages."""
        shard = shard_of(scope)
        return shard in self.epochs and shard not in self.loading and shard not in self.leaving

    def require(self, scope: str) -> None:
        """Raise `HeldElsewhere` if this node does not own the shard of a scope."""
        if shard_of(scope) not in self.epochs:
            raise HeldElsewhere(scope)

    def track(
        self, scope: str, on_done: Callable[[BaseException | None], None] | None
    ) -> Callable[[BaseException | None], None]:
        """Note that a commit of a scope is under way, until the callback that this returns is called."""
        shard = shard_of(scope)
        self._commits[shard] += 1

        def settled(error: BaseException | None) -> None:
            self._commits[shard] -= 1
            if error is None:
                self.commits[shard] += 1
            if on_done is not None:
                on_done(error)

        return settled

    def is_committing(self, shard: int) -> bool:
        """Return whether the outcome of a commit is open. A message that it accepts goes into its lane after that."""
        return self._commits[shard] > 0

    def require_loaded(self, scope: str) -> None:
        """Raise `HeldElsewhere` if this node does not own the shard of a scope, or has not read its sessions yet."""
        shard = shard_of(scope)
        if shard not in self.epochs or shard in self.loading:
            raise HeldElsewhere(scope)

    @contextmanager
    def watched(self, scope: str, on_moved: Callable[[], None]) -> Iterator[None]:
        """Call `on_moved` if this node gives the shard of a scope back while inside. Raises as `require_loaded`."""
        self.require_loaded(scope)
        watchers = self._watchers.setdefault(shard_of(scope), [])
        watchers.append(on_moved)
        try:
            yield
        finally:
            watchers.remove(on_moved)
            if not watchers:
                self._watchers.pop(shard_of(scope), None)

    def moved(self, shards: Collection[int]) -> None:
        """Tell those who watch that these shards were given back."""
        self.moves += 1
        for shard in shards:
            for on_moved in tuple(self._watchers.get(shard, ())):
                on_moved()

    def only(self, scopes: Iterable[str]) -> Iterator[str]:
        """Yield the scopes that this node owns."""
        return (scope for scope in scopes if self.owns(scope))

    @property
    def home(self) -> str:
        """The name of one shard of this node. It owns what belongs to no scope, such as a message to an owner.

        If possible, that is no shard which is being read: the message would be found as one of the last owner.
        """
        if not self.epochs:
            raise HeldElsewhere("")
        return f"shard:{min((self.epochs.keys() - self.loading - self.leaving) or self.epochs)}"
