"""Which sessions have to go, and which are merely idle. Pure: a scope, the settings and the time in, keys out."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from config import SessionSettings
from gateway.sessions.index import Scope
from gateway.sessions.meta import SessionMeta
from gateway.sessions.state import SessionStatus

__all__ = [
    "IsBusy",
    "Leaving",
    "OnLeaving",
    "SweepReport",
    "expired",
    "idle",
    "is_forgotten",
    "never_busy",
    "nobody_takes",
    "surplus",
]

IsBusy = Callable[[str], bool]
"""Tells whether a turn of the session with this key runs or waits."""


class Leaving(StrEnum):
    """Why a session leaves the foreground (`ROTATED`) or the disk (the others)."""

    ROTATED = "rotated"
    PRUNED = "pruned"
    EXPIRED = "expired"
    DELETED = "deleted"


OnLeaving = Callable[[SessionMeta, Leaving], Awaitable[None]]
"""What an archiver is: it is awaited before a file is deleted, and after another session took the place of this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """What one sweep did. Unless `is_done`, scopes are left that the next sweep goes on with."""

    expired: tuple[str, ...] = ()
    completed: tuple[str, ...] = ()
    undeletable: int = 0
    """Files of deleted sessions that the disk would not let go; every sweep and every start tries again."""
    is_done: bool = True


def never_busy(_key: str) -> bool:
    return False


async def nobody_takes(_meta: SessionMeta, _why: Leaving) -> None:
    """Let go what is leaving: there is no archive."""


def surplus(scope: Scope, limit: int, is_busy: IsBusy) -> list[str]:
    """Return the least recently used sessions beyond `limit`, but never the active one or one with a turn in flight.

    A session is used while it is the active one, so the epochs tell which was used last, and no clock has to.
    """
    free = [key for key in scope.sessions if key != scope.active_session_key and not is_busy(key)]
    free.sort(key=lambda key: scope.sessions[key].epoch)
    return free[: max(0, len(scope.sessions) - max(limit, 1))]


def expired(scope: Scope, settings: SessionSettings, now: datetime, is_busy: IsBusy) -> list[str]:
    """Return the sessions that nobody has touched for `ttl_days`, the active one last."""
    if settings.ttl_days == 0:
        return []
    limit = now - timedelta(days=settings.ttl_days)
    old = [key for key, state in scope.sessions.items() if state.last_accessed < limit and not is_busy(key)]
    return sorted(old, key=lambda key: (key == scope.active_session_key, scope.sessions[key].epoch))


def is_forgotten(scope: Scope, settings: SessionSettings, now: datetime) -> bool:
    """Tell whether a scope without sessions has been so for so long that nobody remembers its numbers."""
    return not scope.sessions and settings.ttl_days > 0 and scope.updated_at < now - timedelta(days=settings.ttl_days)


def idle(scope: Scope, settings: SessionSettings, now: datetime, is_busy: IsBusy) -> list[str]:
    """Return the open sessions in which nobody has said anything for `idle_minutes`."""
    if settings.idle_minutes == 0:
        return []
    limit = now - timedelta(minutes=settings.idle_minutes)
    return [
        key
        for key, state in scope.sessions.items()
        if state.status is SessionStatus.ACTIVE and max(state.updated_at, state.last_accessed) < limit
        if not is_busy(key)
    ]
