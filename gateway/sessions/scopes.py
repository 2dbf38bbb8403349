"""All scopes in little memory: as they stand in the index, decoded only while they are in use."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping

from gateway.sessions import index
from gateway.sessions.index import Member, Scope

__all__ = ["Scopes"]

_DECODED_LIMIT = 4096


class Scopes:
    """Looks like a dictionary in which every scope is, if need be an empty one."""

    def __init__(self, members: Mapping[str, Member], sessions: int) -> None:
        self.sessions = sessions
        """How many sessions all scopes have."""
        self._members = dict(members)
        self._decoded: OrderedDict[str, Scope] = OrderedDict()
        self._changed: dict[str, Scope] = {}
        self._dropped: set[str] = set()

    def __iter__(self) -> Iterator[str]:
        return iter([name for name in {**self._members, **self._changed} if name not in self._dropped])

    def __len__(self) -> int:
        new = sum(name not in self._members for name in self._changed)
        return len(self._members) + new - len(self._dropped & self._members.keys())

    def __getitem__(self, name: str) -> Scope:
        scope = self._changed.get(name) or self._decoded.get(name)
        if scope is not None:
            return scope
        member = self._members.get(name)
        if member is None or name in self._dropped:
            return index.EMPTY
        return self._remember(name, index.decode_scope(member))

    def __setitem__(self, name: str, scope: Scope) -> None:
        self.sessions += len(scope.sessions) - len(self[name].sessions)
        self._changed[name] = scope
        self._decoded.pop(name, None)
        self._dropped.discard(name)

    @property
    def is_changed(self) -> bool:
        return bool(self._changed or self._dropped)

    def dropped(self) -> frozenset[str]:
        """Return the names that are to be left out of the index."""
        return frozenset(self._dropped)

    def changed(self) -> dict[str, Scope]:
        """Return what has to be encoded before `members` are all that there is; `settle` tells when it was."""
        return dict(self._changed)

    def members(self) -> Mapping[str, Member]:
        """Return all scopes as they were encoded last; nothing changes in it until `settle` is called."""
        return self._members

    def drop(self, name: str) -> None:
        """Forget a scope that has no sessions left."""
        self._changed.pop(name, None)
        self._decoded.pop(name, None)
        self._dropped.add(name)

    def settle(self, encoded: Mapping[str, Member], scopes: Mapping[str, Scope], dropped: frozenset[str]) -> None:
        """Keep what `scopes` were encoded to, but for those that have been dropped meanwhile.

        One that has changed again counts as changed.
        """
        for name in dropped & self._dropped:
            self._members.pop(name, None)
        self._dropped -= dropped
        for name, scope in scopes.items():
            if name in self._changed:
                self._members[name] = encoded[name]
                if self._changed[name] is scope:
                    del self._changed[name]
                    self._remember(name, scope)

    def _remember(self, name: str, scope: Scope) -> Scope:
        self._decoded[name] = scope
        if len(self._decoded) > _DECODED_LIMIT:
            self._decoded.popitem(last=False)
        return scope
