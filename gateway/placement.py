"""Placement: which labels a conversation needs of the node that works on it, and whether this node has them.

The settings give a label to repositories and agents whose folders are on the disks of some nodes only. What a session
needs follows from its agent and its repository, so nothing about that is stored with it. The row of a shard has the
labels that its sessions need, for the nodes that do not own it: see `hosts`.

1. The owner of a shard stores a label before it accepts the first message that needs it.
2. If it lacks the label itself, it accepts nothing of that conversation: `NeedsLabel` makes the message an arrival. The
   shard goes to a node with the label as soon as nothing of it is under way, and that node accepts the message.
3. If no node has had the label for `cluster.label_timeout`, the message is refused with a sentence.
4. A turn that has begun elsewhere waits in the inbox in the same way, and fails with that sentence.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from random import choice
from time import monotonic

import structlog

from config import Settings
from gateway.access.rules import Live
from gateway.errors import HeldElsewhere, NeedsLabel, NotAccepted, Refused
from gateway.sessions import SessionManager, SessionMeta
from gateway.shards import hosts, shard_of
from gateway.spool import ChangeShardLabels, Spool

log: structlog.stdlib.BoundLogger = structlog.get_logger()

Labels = frozenset[str]
_NONE: Labels = frozenset()


class NoNode(Refused):
    """No node of the cluster has the labels that a conversation needs."""

    def __init__(self, labels: Labels) -> None:
        named = " and ".join(sorted(labels))
        super().__init__(
            f"This conversation works at a machine with the label {named}, and none of those is running. Please try "
            "again later, or ask whoever runs this bot to start one."
        )
        self.labels = labels


class Placement:
    """`own` are the labels of this node. Without a cluster, every conversation needs none."""

    def __init__(self, live: Live, spool: Spool, own: Iterable[str] = ()) -> None:
        self.pins: dict[int, Labels] = {}
        """The labels that shards need."""
        self.nodes: Mapping[str, Labels] = {}
        """The labels of the nodes that take shards."""
        self.owners: Mapping[int, str] = {}
        """The node that owns each shard."""
        self.on_pinned: Callable[[], None] = lambda: None
        self.waiting_turns: dict[str, tuple[str, Labels]] = {}
        """Turns of the inbox that wait for another node, with their scope and the labels that they need."""
        self._live = live
        self._spool = spool
        self._own = frozenset(own)
        self._absent_since: dict[str, float] = {}
        """By label, the monotonic time since when no node has it."""
        self._homeless_since: dict[tuple[int, Labels], float] = {}
        """By shard and needed labels, since when no node that has these may own the shard."""
        self._changed = asyncio.Event()
        self._used: tuple[Settings, dict[tuple[str, str], str]] | None = None

    @property
    def is_used(self) -> bool:
        """Whether anything needs a label."""
        return bool(self._labels())

    def needed(self, agent: str, *repos: str | None) -> Labels:
        """Return the labels that a node needs to run an agent in repositories."""
        if not (used := self._labels()):
            return _NONE
        names = [("agent", agent), *(("repo", repo) for repo in repos if repo)]
        return frozenset(used[name] for name in names if name in used)

    def needed_by(self, session: SessionMeta) -> Labels:
        return self.needed(session.agent, session.repo, session.workspace)

    def needed_by_shards(self, sessions: SessionManager, shards: Collection[int]) -> dict[int, Labels]:
        """Return the labels that the sessions of some shards need. This node owns the shards."""
        found: dict[int, Labels] = {}
        if self.is_used:
            for scope in sessions.scopes():
                if (shard := shard_of(scope)) in shards:
                    for session in sessions.list(scope):
                        if labels := self.needed_by(session):
                            found[shard] = found.get(shard, _NONE) | labels
        return found

    async def require(self, scope: str, needed: Labels) -> None:
        """Return if this node has the labels that work on a scope needs.

        Otherwise raises `NeedsLabel`, and `NoNode` if no node has had them for a while.
        """
        if not needed:
            return
        shard = shard_of(scope)
        if missing := needed - self.pins.get(shard, _NONE):
            await self._spool.commit(ChangeShardLabels(shard=shard, add=missing), scope=scope)
            self.pins[shard] = self.pins.get(shard, _NONE) | missing
            self.on_pinned()
        if needed <= self._own:
            return
        if self.is_overdue(scope, needed):
            raise NoNode(needed)
        raise NeedsLabel(scope, needed)

    async def require_now(self, scope: str, needed: Labels) -> None:
        """Do the same for a program, which can try again. Raises `NotAccepted` at once if no node has the labels."""
        try:
            await self.require(scope, needed)
        except NoNode as error:
            raise NotAccepted(str(error)) from error
        except NeedsLabel as error:
            if self.has_host(scope, needed):
                raise
            raise NotAccepted(str(NoNode(needed))) from error

    def has(self, needed: Labels) -> bool:
        """Return whether this node has labels."""
        return needed <= self._own

    def check(self, needed: Labels) -> None:
        """Raise `NoNode` if this node lacks labels that a turn needs."""
        if not needed <= self._own:
            raise NoNode(needed)

    def require_anywhere(self, needed: Labels) -> None:
        """Return if this node has the labels that a request needs which belongs to no scope yet.

        Otherwise raises `HeldElsewhere` for a node that has them, and `NotAccepted` if there is none.
        """
        if needed <= self._own:
            return
        shards = [shard for shard, boot in self.owners.items() if needed <= self.nodes.get(boot, _NONE)]
        if not shards:
            raise NotAccepted(str(NoNode(needed)))
        raise HeldElsewhere(f"shard:{choice(shards)}")  # noqa: S311 - no secret.

    def keeps(self, scope: str, needed: Labels) -> bool:
        """Return whether this node has all labels that the shard of a scope needs."""
        return needed | self.pins.get(shard_of(scope), _NONE) <= self._own

    def has_host(self, scope: str, needed: Labels) -> bool:
        """Return whether a node that has the labels may own the shard of a scope."""
        pinned = self.pins.get(shard_of(scope), _NONE) | needed
        return any(needed <= self.nodes[boot] for boot in hosts(pinned, self.nodes))

    def is_overdue(self, scope: str, needed: Labels) -> bool:
        """Return whether no node has had these labels for `cluster.label_timeout`, so that waiting has to end."""
        key = (shard_of(scope), needed)
        if self.has_host(scope, needed):
            self._homeless_since.pop(key, None)
            return False
        since = self._homeless_since.setdefault(key, monotonic())
        since = min([since, *(self._absent_since.get(label, since) for label in needed)])
        return monotonic() - since >= self._live.settings.cluster.label_timeout

    def must_wait(self, scope: str, needed: Labels) -> bool:
        """Return whether work on a scope has to wait for another node."""
        return not needed <= self._own and not self.is_overdue(scope, needed)

    async def changed(self) -> None:
        """Return when another look at the cluster was taken."""
        await self._changed.wait()

    def update(self, nodes: Mapping[str, Labels], pins: Mapping[int, Labels], owners: Mapping[int, str]) -> None:
        """Take what the database says."""
        self.nodes, self.owners = nodes, owners
        self.pins = dict(pins)
        self._absent_since = {label: self._absent_since.get(label, monotonic()) for label in self.absent}
        self.wake()

    def wake(self) -> None:
        """Let all look again that wait for another node."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def due_turns(self) -> frozenset[str]:
        """Return the turns that need not wait for another node any more, and forget them."""
        due = frozenset(turn for turn, waits in self.waiting_turns.items() if not self.must_wait(*waits))
        for turn in due:
            del self.waiting_turns[turn]
        return due

    def forget(self, shards: Collection[int]) -> None:
        """Forget the work of shards that this node does not own any more."""
        self.waiting_turns = {
            turn: waits for turn, waits in self.waiting_turns.items() if shard_of(waits[0]) not in shards
        }
        for key in [key for key in self._homeless_since if key[0] in shards]:
            del self._homeless_since[key]
        self.wake()

    @property
    def absent(self) -> Labels:
        """The labels that something needs and no node has."""
        wanted = frozenset(self._labels().values()).union(*self.pins.values())
        return wanted.difference(*self.nodes.values())

    def _labels(self) -> dict[tuple[str, str], str]:
        """Return the labels of agents and repositories. They are cached, since each message needs them."""
        settings = self._live.settings
        if self._used is None or self._used[0] is not settings:
            named = [("agent", name, agent.label) for name, agent in settings.agents.items()]
            named += [("repo", repo.id, repo.label) for repo in settings.repos]
            is_cluster = settings.cluster.enabled
            self._used = settings, {(kind, name): label for kind, name, label in named if label and is_cluster}
        return self._used[1]
