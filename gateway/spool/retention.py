"""Keeps the spool bounded: deletes old rows in small steps and returns their space."""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial

from gateway.database.connection import Connection
from gateway.spool.rows import to_micros

CHUNK = 500
"""Rows or pages per step. Commits get their turn between two steps."""

ALWAYS_SEEN = 10_000
"""The newest events are kept at any age, because the clock may have jumped."""

FINISHED_LIMIT = 20_000
DEAD_LIMIT = 5_000
DEAD_KEPT = timedelta(days=30)
PAGES_KEPT = 1_024
"""Free pages that stay in the file, because the next half minute needs them again."""
USAGE_KEPT = timedelta(days=35)
USAGE_LIMIT = 100_000
"""Above this number of rows the oldest days are deleted earlier, but never the newest day: its limits apply."""

SCHEDULES_KEPT = timedelta(days=7)
"""For how long the history of a schedule can be read that has ended."""

Step = Callable[[Connection], bool]
"""Does a bounded part of the work. Returns whether there may be more."""

# Events by their order of arrival: a jump of the clock must not delete the newest, or repeats would be answered again.
_SEEN = """
    DELETE FROM seen WHERE id IN (SELECT id FROM seen ORDER BY id LIMIT :chunk) AND (
        id <= (SELECT max(id) FROM seen) - :max_seen
        OR (at < :horizon AND id <= (SELECT max(id) FROM seen) - :always)
    )
"""
# A row stays while a part of its reply is undelivered or dead: it says which session the part belongs to.
_INBOX_FINISHED = """
    DELETE FROM inbox WHERE id IN (
        SELECT id FROM inbox WHERE state IN ('answered', 'abandoned')
        AND (accepted_at < :horizon OR id <= (SELECT max(id) FROM inbox) - :limit)
        AND turn NOT IN (SELECT turn FROM outbox WHERE state <> 'delivered' AND turn IS NOT NULL)
        ORDER BY id LIMIT :chunk
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
# Drafts whose turn ended without deleting them.
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
        WHERE day < :horizon OR day < (SELECT day FROM usage ORDER BY day DESC LIMIT 1 OFFSET :limit)
        LIMIT :chunk
    )
"""
_AGENT_USAGE = """
    DELETE FROM agent_usage WHERE (day, person, model, agent) IN (
        SELECT day, person, model, agent FROM agent_usage
        WHERE day < :horizon OR day < (SELECT day FROM agent_usage ORDER BY day DESC LIMIT 1 OFFSET :limit)
        LIMIT :chunk
    )
"""
_REMINDERS = """
    DELETE FROM reminders WHERE id IN (SELECT id FROM reminders WHERE over_at < :horizon LIMIT :chunk)
"""
# The runs of a schedule go before it.
_SCHEDULE_RUNS = """
    DELETE FROM schedule_runs WHERE (schedule, number) IN (
        SELECT schedule_runs.schedule, schedule_runs.number FROM schedules
        JOIN schedule_runs ON schedule_runs.schedule = schedules.id WHERE over_at < :horizon LIMIT :chunk
    )
"""
_SCHEDULES = """
    DELETE FROM schedules WHERE id IN (SELECT id FROM schedules WHERE over_at < :horizon LIMIT :chunk)
"""


def steps(now: datetime, *, keep: timedelta, max_seen: int) -> Iterator[Step]:
    """Yield the steps of one clean-up. Each is repeated until it returns False."""
    # Every statement deletes at most CHUNK rows, oldest first, and uses an index to find them.
    horizon = to_micros(now - keep)
    dead = {"horizon": to_micros(now - max(keep, DEAD_KEPT)), "limit": DEAD_LIMIT}
    finished = {"horizon": horizon, "limit": FINISHED_LIMIT}
    usage_horizon = (now - USAGE_KEPT).astimezone(UTC).date().isoformat()
    yield partial(_delete, _SEEN, {"max_seen": max_seen, "horizon": horizon, "always": ALWAYS_SEEN})
    yield partial(_delete, _INBOX_FINISHED, finished)
    yield partial(_delete, _OUTBOX_FINISHED, finished)
    yield partial(_delete, _INBOX_DEAD, dead)
    yield partial(_delete, _OUTBOX_DEAD, dead)
    yield partial(_delete, _DRAFTS, {"horizon": horizon})
    yield partial(_delete, _USAGE, {"horizon": usage_horizon, "limit": USAGE_LIMIT})
    yield partial(_delete, _AGENT_USAGE, {"horizon": usage_horizon, "limit": USAGE_LIMIT})
    yield partial(_delete, _REMINDERS, {"horizon": horizon})
    schedules_horizon = to_micros(now - max(keep, SCHEDULES_KEPT))
    yield partial(_delete, _SCHEDULE_RUNS, {"horizon": schedules_horizon})
    yield partial(_delete, _SCHEDULES, {"horizon": schedules_horizon})


def _delete(statement: str, values: Mapping[str, object], connection: Connection) -> bool:
    return connection.execute(statement, {**values, "chunk": CHUNK}).rowcount == CHUNK


def return_free_pages(connection: Connection) -> bool:
    """Do one step of returning the space of deleted rows of a SQLite file."""
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    surplus = min(free - PAGES_KEPT, CHUNK)
    for _ in range(surplus):
        # SQLite frees one page per row of this statement, and Python's sqlite3 fetches no row of a statement without
        # columns. So it has to run once per page.
        connection.execute("PRAGMA incremental_vacuum(1)")
    return bool(surplus == CHUNK)
