"""Operations about reminders: the changes to them that can be committed to the spool."""

from datetime import datetime

from gateway.database.connection import Connection
from gateway.spool.errors import Duplicate, TooMany, WrongState
from gateway.spool.operations import Operation
from gateway.spool.rows import ReminderContent, encode, to_micros


class AddReminder(Operation, frozen=True, kw_only=True):
    """Store a reminder under the next number of its scope. Raises `TooMany` at either limit."""

    id: str
    scope: str
    due_at: datetime
    cron: str | None
    about: ReminderContent
    max_per_scope: int
    max_total: int

    def apply(self, connection: Connection) -> None:
        # Ended reminders keep their number until they are deleted, so the maximum includes them.
        of_scope, total, last_number = connection.execute(
            """
            SELECT (SELECT count(*) FROM reminders WHERE scope = :scope AND due_at IS NOT NULL),
            (SELECT count(*) FROM reminders WHERE due_at IS NOT NULL),
            (SELECT coalesce(max(number), 0) FROM reminders WHERE scope = :scope)
            """,
            {"scope": self.scope},
        ).fetchone()
        if of_scope >= self.max_per_scope or total >= self.max_total:
            raise TooMany(f"There are {of_scope} reminders in {self.scope}, and {total} in all.")
        inserted = connection.execute(
            "INSERT INTO reminders (id, scope, number, due_at, cron, about) VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT DO NOTHING",
            (self.id, self.scope, last_number + 1, to_micros(self.due_at), self.cron, encode(self.about)),
        )
        if not inserted.rowcount:
            raise Duplicate(f"The reminder {self.id} exists already.")


class RescheduleReminder(Operation, frozen=True, kw_only=True):
    """Move a reminder from `due_at` to its next time, or end it. Raises `WrongState` if it is not due at `due_at`.

    `is_sent`: the same commit adds its message to the outbox.
    """

    id: str
    due_at: datetime
    next_at: datetime | None
    at: datetime
    is_sent: bool = False
    failures: int = 0

    def apply(self, connection: Connection) -> None:
        moved = connection.execute(
            """
            UPDATE reminders SET due_at = :next, over_at = :over, failures = :failures,
            rung_for = CASE WHEN :sent = 1 THEN due_at ELSE rung_for END, rings = rings + :sent
            WHERE id = :id AND due_at = :due
            """,
            {
                "id": self.id,
                "due": to_micros(self.due_at),
                "next": None if self.next_at is None else to_micros(self.next_at),
                "over": to_micros(self.at) if self.next_at is None else None,
                "sent": int(self.is_sent),
                "failures": self.failures,
            },
        )
        if not moved.rowcount:
            raise WrongState(f"The reminder {self.id} is no longer due at {self.due_at}.")


class CancelReminder(Operation, frozen=True, kw_only=True):
    """End a reminder. Raises `WrongState` if it has ended."""

    id: str
    at: datetime

    def apply(self, connection: Connection) -> None:
        ended = connection.execute(
            "UPDATE reminders SET due_at = NULL, over_at = ? WHERE id = ? AND due_at IS NOT NULL",
            (to_micros(self.at), self.id),
        )
        if not ended.rowcount:
            raise WrongState(f"The reminder {self.id} has ended.")
