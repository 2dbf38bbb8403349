"""Writes the rows of a spool, from whichever database it is in, to a new `spool.db`."""

import contextlib
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from gateway.database.connection import Connection
from gateway.private_files import CREATE, open_private
from gateway.spool import schema

TABLES: Mapping[str, tuple[str, ...]] = {
    "seen": ("id", "channel", "account", "event_id", "at"),
    "inbox": (
        *("id", "turn", "state", "scope", "session", "number", "agent", "accepted_at", "attempts"),
        *("answered_by", "note", "inbound", "event_id"),
    ),
    "outbox": (
        *("id", "key", "turn", "state", "created_at", "sending_at", "delivered_at", "attempts"),
        *("reason", "receipt", "message"),
    ),
    "drafts": ("turn", "receipt", "at"),
    "facts": ("name", "value"),
    "usage": ("day", "person", "model", "input_tokens", "cached_tokens", "output_tokens", "cost_micros"),
    "agent_usage": (
        *("day", "person", "model", "agent", "input_tokens", "cached_tokens", "output_tokens", "cost_micros"),
    ),
    "reminders": (*("id", "scope", "number", "due_at", "cron", "rung_for", "rings", "failures", "over_at", "about"),),
    "schedules": (
        *("id", "scope", "number", "state", "due_at", "planned_at", "ran_for", "is_forced", "runs", "failures"),
        *("session", "seen", "note", "spent_day", "spent_tokens", "spent_micros", "over_at", "about"),
    ),
    "schedule_runs": (
        *("schedule", "number", "state", "planned_at", "started_at", "ended_at", "times"),
        *("session", "note", "tokens", "cost_micros"),
    ),
    "deletions": ("session", "outbox_id", "is_purged"),
}
"""The tables that every engine has, with their columns. The journal exists only where transcripts are files."""


def copy_rows(source: Connection, target: Connection) -> None:
    """Copy all rows to the empty tables of `target`, inside its transaction."""
    for table, columns in TABLES.items():
        names, values = ", ".join(columns), ", ".join("?" * len(columns))
        rows = source.execute(f"SELECT {names} FROM {table}")  # noqa: S608 - constants only
        target.executemany(f"INSERT INTO {table} ({names}) VALUES ({values})", rows)  # noqa: S608 - constants only


def write_copy(path: Path, source: Connection) -> None:
    """Write the rows to a new private file. Leaves no file behind if that fails."""
    os.close(open_private(path, CREATE))
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as target:
            target.execute("PRAGMA auto_vacuum = INCREMENTAL").fetchall()
            schema.migrate(target)
            target.execute("BEGIN IMMEDIATE")
            copy_rows(source, target)
            target.execute("COMMIT")
    except BaseException:
        path.unlink(missing_ok=True)
        raise
