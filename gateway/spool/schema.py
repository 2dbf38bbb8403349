"""The tables of the spool, as one migration for each version.

A released migration never changes. A newer version adds another one behind it.
"""

import sqlite3
from collections.abc import Sequence

Step = tuple[str, ...]

# Times are microseconds since 1970. Rows are ordered by `id`, never by time: clocks jump.
# Autovacuum and the partial indexes keep queries and clean-up independent of the number of finished rows.
_FIRST: Step = (
    """
    CREATE TABLE seen (
        id INTEGER PRIMARY KEY,
        channel TEXT NOT NULL,
        account TEXT NOT NULL,
        event_id TEXT NOT NULL,
        at INTEGER NOT NULL,
        UNIQUE (channel, account, event_id)
    )
    """,
    """
    CREATE TABLE inbox (
        id INTEGER PRIMARY KEY,
        turn TEXT NOT NULL UNIQUE,
        state TEXT NOT NULL,
        scope TEXT NOT NULL,
        session TEXT NOT NULL,
        number INTEGER NOT NULL,
        agent TEXT NOT NULL,
        accepted_at INTEGER NOT NULL,
        attempts INTEGER NOT NULL DEFAULT 0,
        answered_by TEXT,
        note TEXT NOT NULL DEFAULT '',
        inbound BLOB NOT NULL
    )
    """,
    "CREATE INDEX inbox_unanswered ON inbox (state) WHERE state NOT IN ('answered', 'abandoned')",
    """
    CREATE TABLE outbox (
        id INTEGER PRIMARY KEY,
        key TEXT NOT NULL UNIQUE,
        turn TEXT,
        state TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        sending_at INTEGER,
        delivered_at INTEGER,
        attempts INTEGER NOT NULL DEFAULT 0,
        reason TEXT NOT NULL DEFAULT '',
        receipt BLOB,
        message BLOB NOT NULL
    )
    """,
    "CREATE INDEX outbox_undelivered ON outbox (state) WHERE state <> 'delivered'",
    """
    CREATE TABLE notes (
        session TEXT NOT NULL,
        seq INTEGER NOT NULL,
        line BLOB NOT NULL,
        PRIMARY KEY (session, seq)
    ) WITHOUT ROWID
    """,
    "CREATE TABLE drafts (turn TEXT PRIMARY KEY, receipt BLOB NOT NULL, at INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
)

# Days are UTC, as YYYY-MM-DD.
_USAGE: Step = (
    """
    CREATE TABLE usage (
        day TEXT NOT NULL,
        person TEXT NOT NULL,
        model TEXT NOT NULL,
        input_tokens INTEGER NOT NULL,
        cached_tokens INTEGER NOT NULL,
        output_tokens INTEGER NOT NULL,
        cost_micros INTEGER NOT NULL,
        PRIMARY KEY (day, person, model)
    ) WITHOUT ROWID
    """,
)

# An edit finds its message by the event id.
_EVENTS: Step = (
    "ALTER TABLE inbox ADD COLUMN event_id TEXT NOT NULL DEFAULT ''",
    "CREATE INDEX inbox_event ON inbox (event_id)",
)

# A row without `due_at` has ended. It stays for a while, so that its number is not reused at once.
_REMINDERS: Step = (
    """
    CREATE TABLE reminders (
        id TEXT PRIMARY KEY,
        scope TEXT NOT NULL,
        number INTEGER NOT NULL,
        due_at INTEGER,
        cron TEXT,
        rung_for INTEGER,
        rings INTEGER NOT NULL DEFAULT 0,
        failures INTEGER NOT NULL DEFAULT 0,
        over_at INTEGER,
        about BLOB NOT NULL,
        UNIQUE (scope, number)
    )
    """,
    "CREATE INDEX reminders_due ON reminders (due_at) WHERE due_at IS NOT NULL",
    "CREATE INDEX reminders_over ON reminders (over_at) WHERE over_at IS NOT NULL",
)

# Sessions whose deletion is not finished. `outbox_id` is the newest row of the outbox at that time. The text of a
# delivered message is not needed any more, so it is no longer kept.
_DELETIONS: Step = (
    """
    CREATE TABLE deletions (
        session TEXT PRIMARY KEY,
        outbox_id INTEGER NOT NULL,
        is_purged INTEGER NOT NULL
    ) WITHOUT ROWID
    """,
    "UPDATE outbox SET message = '{}' WHERE state = 'delivered'",
)

# A schedule that has ended or was deleted has the time of that in `over_at`, and stays for a while.
_SCHEDULES: Step = (
    """
    CREATE TABLE schedules (
        id TEXT PRIMARY KEY,
        scope TEXT NOT NULL,
        number INTEGER NOT NULL,
        state TEXT NOT NULL,
        due_at INTEGER,
        planned_at INTEGER,
        ran_for INTEGER,
        is_forced INTEGER NOT NULL DEFAULT 0,
        runs INTEGER NOT NULL DEFAULT 0,
        failures INTEGER NOT NULL DEFAULT 0,
        session TEXT NOT NULL DEFAULT '',
        seen TEXT NOT NULL DEFAULT '',
        note TEXT NOT NULL DEFAULT '',
        spent_day TEXT NOT NULL DEFAULT '',
        spent_tokens INTEGER NOT NULL DEFAULT 0,
        spent_micros INTEGER NOT NULL DEFAULT 0,
        over_at INTEGER,
        about BLOB NOT NULL,
        UNIQUE (scope, number)
    )
    """,
    "CREATE INDEX schedules_due ON schedules (due_at) WHERE due_at IS NOT NULL",
    "CREATE INDEX schedules_over ON schedules (over_at) WHERE over_at IS NOT NULL",
    """
    CREATE TABLE schedule_runs (
        schedule TEXT NOT NULL,
        number INTEGER NOT NULL,
        state TEXT NOT NULL,
        planned_at INTEGER NOT NULL,
        started_at INTEGER NOT NULL,
        ended_at INTEGER,
        times INTEGER NOT NULL DEFAULT 1,
        session TEXT NOT NULL DEFAULT '',
        note TEXT NOT NULL DEFAULT '',
        tokens INTEGER NOT NULL DEFAULT 0,
        cost_micros INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (schedule, number)
    ) WITHOUT ROWID
    """,
)

# What `usage` has, for each agent. Usage before this table came has no agent.
_AGENT_USAGE: Step = (
    """
    CREATE TABLE agent_usage (
        day TEXT NOT NULL,
        person TEXT NOT NULL,
        model TEXT NOT NULL,
        agent TEXT NOT NULL,
        input_tokens INTEGER NOT NULL,
        cached_tokens INTEGER NOT NULL,
        output_tokens INTEGER NOT NULL,
        cost_micros INTEGER NOT NULL,
        PRIMARY KEY (day, person, model, agent)
    ) WITHOUT ROWID
    """,
)

MIGRATIONS: Sequence[Step] = (_FIRST, _USAGE, _EVENTS, _REMINDERS, _DELETIONS, _SCHEDULES, _AGENT_USAGE)


class Newer(Exception):
    """A newer version has written the file."""


class NotOurs(Exception):
    """The file is a database, but not a spool."""


def version_of(connection: sqlite3.Connection, steps: Sequence[Step] = MIGRATIONS) -> int:
    """Return the number of migrations applied, 0 for a new file. Raises `Newer` or `NotOurs` for other files."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > len(steps):
        raise Newer(version)
    if version == 0 and connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
        raise NotOurs
    return version


LOST_SPOOL = "spool.lost"
"""The fact that the spool is new although there were sessions. Its value says what happened to the old one."""


def migrate(connection: sqlite3.Connection, steps: Sequence[Step] = MIGRATIONS, *, lost: str | None = None) -> None:
    """Migrate to the newest version in one transaction. `lost` is stored as a fact in a new file."""
    version = version_of(connection, steps)
    if version == len(steps):
        return
    connection.execute("BEGIN IMMEDIATE")
    for step in steps[version:]:
        for statement in step:
            connection.execute(statement)
    if version == 0 and lost is not None:
        connection.execute("INSERT INTO facts (name, value) VALUES (?, ?)", (LOST_SPOOL, lost))
    connection.execute(f"PRAGMA user_version = {len(steps)}")
    connection.execute("COMMIT")
