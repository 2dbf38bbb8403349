"""Keeping the file bounded: old rows go in small steps, and the room they leave is given back."""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gateway.spool.rows import to_micros

__all__ = ["STEPS", "Limits", "Step"]

CHUNK = 500
"""Rows or pages in one step; commits get their turn between two steps."""

ALWAYS_SEEN = 10_000
"""The newest events stay, however old the clock says they are: it may have jumped."""

FINISHED_LIMIT = 20_000
DEAD_LIMIT = 5_000
DEAD_KEPT = timedelta(days=30)
PAGES_KEPT = 1_024
USAGE_KEPT = timedelta(days=35)
USAGE_LIMIT = 100_000
"""Beyond so many rows the oldest days go sooner, but never the newest day: its limits are in force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    now: datetime
    keep: timedelta
    at_most: int

    @property
    def horizon(self) -> int:
        return to_micros(self.now - self.keep)

    @property
    def dead_horizon(self) -> int:
        return to_micros(self.now - max(self.keep, DEAD_KEPT))

    @property
    def usage_horizon(self) -> str:
        return (self.now - USAGE_KEPT).astimezone(UTC).date().isoformat()


Step = Callable[[sqlite3.Connection, Limits], bool]
"""Does a bounded part of the work; tells whether there may be more."""

_SEEN = """
    DELETE FROM seen WHERE id IN (SELECT id FROM seen ORDER BY id LIMIT :chunk) AND (
        id <= (SELECT max(id) FROM seen) - :at_most
        OR (at < :horizon AND id <= (SELECT max(id) FROM seen) - :always)
    )
"""
_INBOX_FINISHED = """
    DELETE FROM inbox WHERE id IN (
        SELECT id FROM inbox WHERE state IN ('answered', 'abandoned')
        AND (accepted_at < :horizon OR id <= (SELECT max(id) FROM inbox) - :limit) ORDER BY id LIMIT :chunk
    )
"""
_OUTBOX_FINISHED = """
    DELETE FROM outbox WHERE id IN (
        SELECT id FROM outbox WHERE state = 'delivered'
        AND (created_at < :horizon OR id <= (SELECT max(id) FROM outbox) - :limit) ORDER BY id LIMIT :chunk
    )
"""
_INBOX_DEAD = """
    DELETE FROM inbox WHERE id IN (
        SELECT id FROM inbox WHERE state NOT IN ('answered', 'abandoned') AND state = 'dead' AND (
            accepted_at < :horizon OR id <= (
                SELECT id FROM inbox WHERE state NOT IN ('answered', 'abandoned') AND state = 'dead'
                ORDER BY id DESC LIMIT 1 OFFSET :limit
            )
        ) ORDER BY id LIMIT :chunk
    )
"""
_OUTBOX_DEAD = """
    DELETE FROM outbox WHERE id IN (
        SELECT id FROM outbox WHERE state <> 'delivered' AND state = 'dead' AND (
            created_at < :horizon OR id <= (
                SELECT id FROM outbox WHERE state <> 'delivered' AND state = 'dead'
                ORDER BY id DESC LIMIT 1 OFFSET :limit
            )
        ) ORDER BY id LIMIT :chunk
    )
"""
_DRAFTS = """
    DELETE FROM drafts WHERE turn IN (
        SELECT turn FROM drafts WHERE at < :horizon AND turn NOT IN (
            SELECT turn FROM inbox WHERE state NOT IN ('answered', 'abandoned') AND state <> 'dead'
        ) LIMIT :chunk
    )
"""

_USAGE = """
    DELETE FROM usage WHERE (day, person, model) IN (
        SELECT day, person, model FROM usage
        WHERE day < max(:horizon, coalesce((SELECT day FROM usage ORDER BY day DESC LIMIT 1 OFFSET :limit), ''))
        LIMIT :chunk
    )
"""


_REMINDERS = """
    DELETE FROM reminders WHERE id IN (SELECT id FROM reminders WHERE over_at < :horizon LIMIT :chunk)
"""


def _seen(connection: sqlite3.Connection, limits: Limits) -> bool:
    """Drop the oldest events, by the order in which they came."""
    values = {"chunk": CHUNK, "at_most": limits.at_most, "horizon": limits.horizon, "always": ALWAYS_SEEN}
    return connection.execute(_SEEN, values).rowcount == CHUNK


def _finished(connection: sqlite3.Connection, limits: Limits) -> bool:
    values = {"chunk": CHUNK, "horizon": limits.horizon, "limit": FINISHED_LIMIT}
    dropped = [connection.execute(statement, values).rowcount for statement in (_INBOX_FINISHED, _OUTBOX_FINISHED)]
    return CHUNK in dropped


def _dead(connection: sqlite3.Connection, limits: Limits) -> bool:
    values = {"chunk": CHUNK, "horizon": limits.dead_horizon, "limit": DEAD_LIMIT}
    dropped = [connection.execute(statement, values).rowcount for statement in (_INBOX_DEAD, _OUTBOX_DEAD)]
    return CHUNK in dropped


def _drafts(connection: sqlite3.Connection, limits: Limits) -> bool:
    """Drop the receipts of drafts whose turn has ended without saying so."""
    return connection.execute(_DRAFTS, {"chunk": CHUNK, "horizon": limits.horizon}).rowcount == CHUNK


def _usage(connection: sqlite3.Connection, limits: Limits) -> bool:
    values = {"chunk": CHUNK, "horizon": limits.usage_horizon, "limit": USAGE_LIMIT}
    return connection.execute(_USAGE, values).rowcount == CHUNK


def _reminders(connection: sqlite3.Connection, limits: Limits) -> bool:
    return connection.execute(_REMINDERS, {"chunk": CHUNK, "horizon": limits.horizon}).rowcount == CHUNK


def _free_pages(connection: sqlite3.Connection, _limits: Limits) -> bool:
    """Give back pages that nobody uses, but for some that the next half minute needs again."""
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    surplus = min(free - PAGES_KEPT, CHUNK)
    for _ in range(surplus):
        # SQLite frees one page per row of this statement, and Python asks for no row of one without columns.
        connection.execute("PRAGMA incremental_vacuum(1)")
    return bool(surplus == CHUNK)


STEPS: tuple[Step, ...] = (_seen, _finished, _dead, _drafts, _usage, _reminders, _free_pages)
