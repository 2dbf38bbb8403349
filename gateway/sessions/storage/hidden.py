"""Finds sessions that no message gets to any more, because the settings that form the scopes have changed."""

from collections.abc import Iterable, Mapping
from contextlib import closing

from msgspec import Struct

from config import Settings, StorageEngine
from gateway.errors import CannotStart
from gateway.private_files import read_private
from gateway.routing import is_reachable
from gateway.sessions import index
from gateway.sessions.storage.reader import open_reader


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
    """Look into the index, whether a daemon is running or not. If it cannot be read, nothing counts as hidden."""
    try:
        found = dict(_in_file(settings) if settings.storage.engine is StorageEngine.FILES else _in_rows(settings))
    except (OSError, ValueError, RecursionError, CannotStart):
        return HiddenSessions(by_scope={})
    return HiddenSessions(
        by_scope={
            scope: sessions for scope, sessions in found.items() if sessions and not is_reachable(settings, scope)
        }
    )


def _in_file(settings: Settings) -> Iterable[tuple[str, int]]:
    scopes = index.decode(read_private(settings.gateway.data_dir / "sessions" / "index.json")).scopes
    return ((name, len(scope.sessions) + scope.archived) for name, scope in scopes.items())


def _in_rows(settings: Settings) -> Iterable[tuple[str, int]]:
    with closing(open_reader(settings.storage)) as connection:
        has_tables = "SELECT to_regclass('session') IS NOT NULL"
        if settings.storage.engine is StorageEngine.SQLITE:
            has_tables = "SELECT count(*) FROM sqlite_master WHERE name = 'session'"
        if not connection.execute(has_tables).fetchone()[0]:
            return []
        return connection.execute("SELECT scope, count(*) FROM session GROUP BY scope").fetchall()
