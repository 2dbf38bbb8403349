"""Finds sessions that no message gets to any more, because the settings that form the scopes have changed."""

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from config import Settings
from gateway.private_files import read_private
from gateway.routing import is_reachable
from gateway.sessions import index


class HiddenSessions(Struct, frozen=True, kw_only=True):
    """How many sessions are hidden, by scope. Archived ones count."""

    by_scope: Mapping[str, int]

    def __bool__(self) -> bool:
        return bool(self.by_scope)

    def __str__(self) -> str:
        sessions, scopes = sum(self.by_scope.values()), len(self.by_scope)
        are = "1 session is" if sessions == 1 else f"{sessions} sessions are"
        where = "1 scope" if scopes == 1 else f"{scopes} scopes"
        return (
            f"{are} hidden in {where}, because session.dm_scope, session.group_scope or session.identity_links has "
            "changed; `gatehouse sessions move` brings them along"
        )


def read_hidden_sessions(settings: Settings) -> HiddenSessions:
    """Look into the index file, whether a daemon is running or not. Without a usable index, nothing is hidden."""
    path: Path = settings.gateway.data_dir / "sessions" / "index.json"
    try:
        scopes = index.decode(read_private(path)).scopes
    except (OSError, ValueError, RecursionError):
        return HiddenSessions(by_scope={})
    return HiddenSessions(
        by_scope={
            name: len(scope.sessions) + scope.archived
            for name, scope in scopes.items()
            if (scope.sessions or scope.archived) and not is_reachable(settings, name)
        }
    )
