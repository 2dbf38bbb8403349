"""The table of reminders: how it changes, and what is read from it."""

import sqlite3
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from gateway.spool.errors import Duplicate, TooMany, WrongState
from gateway.spool.operations import AddReminder, CancelReminder, RescheduleReminder
from gateway.spool.rows import OutboxState, ReminderRow, about_of, encode, from_micros, to_micros

__all__ = ["appoint", "cancel", "due", "next_due", "of_scope", "recurring", "reschedule"]

Connection = sqlite3.Connection
Columns = tuple[Any, ...]  # Any: SQLite gives what was stored.

_COUNTS = """
    SELECT (SELECT count(*) FROM reminders WHERE scope = :scope AND due_at IS NOT NULL),
    (SELECT count(*) FROM reminders WHERE due_at IS NOT NULL),
    (SELECT coalesce(max(number), 0) FROM reminders WHERE scope = :scope)
"""
_APPOINT = "INSERT OR IGNORE INTO reminders (id, scope, number, due_at, cron, about) VALUES (?, ?, ?, ?, ?, ?)"
_RESCHEDULE = """
    UPDATE reminders SET due_at = :next, over_at = CASE WHEN :next IS NULL THEN :at END, failures = :failures,
    rung_for = CASE WHEN :rung THEN due_at ELSE rung_for END, rings = rings + :rung
    WHERE id = :id AND due_at = :due
"""
_CANCEL = "UPDATE reminders SET due_at = NULL, over_at = ? WHERE id = ? AND due_at IS NOT NULL"
_END = "UPDATE reminders SET due_at = NULL, over_at = due_at WHERE id = ?"

# The key is that of `ReminderRow.next_key`, one ring ago.
_OPEN = """
    SELECT id, scope, number, due_at, cron, rung_for, rings, failures,
    (SELECT state FROM outbox WHERE key = 'remind-' || reminders.id || '-' || rings), about
    FROM reminders WHERE due_at IS NOT NULL
"""
_OF_SCOPE = f"{_OPEN} AND scope = ? ORDER BY number"
_DUE = f"{_OPEN} AND due_at <= ? ORDER BY due_at LIMIT ?"
_RECURRING = f"{_OPEN} AND cron IS NOT NULL"
_NEXT_DUE = "SELECT min(due_at) FROM reminders WHERE due_at IS NOT NULL"


def appoint(connection: Connection, wanted: AddReminder) -> None:
    of_scope, in_all, last_number = connection.execute(_COUNTS, {"scope": wanted.scope}).fetchone()
    if of_scope >= wanted.most_per_scope or in_all >= wanted.most_in_all:
        raise TooMany(f"There are {of_scope} reminders in {wanted.scope}, and {in_all} in all.")
    values = (
        wanted.id,
        wanted.scope,
        last_number + 1,
        to_micros(wanted.due_at),
        wanted.cron,
        encode(wanted.about),
    )
    if not connection.execute(_APPOINT, values).rowcount:
        raise Duplicate(f"The reminder {wanted.id} is kept already.")


def reschedule(connection: Connection, move: RescheduleReminder) -> None:
    values = {
        "id": move.id,
        "due": to_micros(move.due_at),
        "next": None if move.next_at is None else to_micros(move.next_at),
        "at": to_micros(move.at),
        "rung": move.has_rung,
        "failures": move.failures,
    }
    if not connection.execute(_RESCHEDULE, values).rowcount:
        raise WrongState(f"The reminder {move.id} is not due at {move.due_at} any more.")


def cancel(connection: Connection, end: CancelReminder) -> None:
    if not connection.execute(_CANCEL, (to_micros(end.at), end.id)).rowcount:
        raise WrongState(f"The reminder {end.id} is over.")


def of_scope(connection: Connection, scope: str) -> list[ReminderRow]:
    return _readable(connection, connection.execute(_OF_SCOPE, (scope,)).fetchall())


def due(connection: Connection, now: datetime, limit: int) -> list[ReminderRow]:
    """Return the earliest that are due; an empty list means that there are none."""
    while rows := connection.execute(_DUE, (to_micros(now), limit)).fetchall():
        if readable := _readable(connection, rows):
            return readable
    return []


def recurring(connection: Connection) -> list[ReminderRow]:
    return _readable(connection, connection.execute(_RECURRING).fetchall())


def next_due(connection: Connection) -> datetime | None:
    (micros,) = connection.execute(_NEXT_DUE).fetchone()
    return None if micros is None else from_micros(micros)


def _readable(connection: Connection, rows: Iterable[Columns]) -> list[ReminderRow]:
    """Return the rows that can be read, and end the others: one that stays due would be asked for again for ever."""
    good: list[ReminderRow] = []
    for row in rows:
        try:
            good.append(_reminder(row))
        except (msgspec.DecodeError, ValueError):
            connection.execute(_END, (row[0],))
    return good


def _reminder(row: Columns) -> ReminderRow:
    name, scope, number, due_at, cron, rung_for, rings, failures, fate, about = row
    return ReminderRow(
        id=name,
        scope=scope,
        number=number,
        due_at=from_micros(due_at),
        cron=cron,
        rung_for=None if rung_for is None else from_micros(rung_for),
        rings=rings,
        failures=failures,
        fate=None if fate is None else OutboxState(fate),
        about=about_of(about),
    )
