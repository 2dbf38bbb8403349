"""Operations about schedules: the changes to them and to the list of their runs that can be committed to the spool."""

from datetime import datetime

from msgspec import Struct

from gateway.database.connection import Connection
from gateway.spool.errors import NumberTaken, TooMany, WrongState
from gateway.spool.operations import Operation
from gateway.spool.rows import RunState, ScheduleContent, ScheduleState, encode, to_micros

RUNS_KEPT = 50
"""The newest runs of a schedule that its history shows."""


def _micros(at: datetime | None) -> int | None:
    return None if at is None else to_micros(at)


class AddSchedule(Operation, frozen=True, kw_only=True):
    """Store a schedule, under the next number of its scope if it has none. Raises `TooMany` at either limit.

    One with the same id that was ended or deleted is replaced, and keeps its number and its history. Raises
    `NumberTaken` if another one has the number.
    """

    id: str
    scope: str
    number: int = 0
    due_at: datetime | None
    planned_at: datetime | None = None
    """The regular time, if `due_at` is later than that by its jitter."""
    about: ScheduleContent
    max_per_scope: int
    max_total: int
    is_over: bool = False
    """It is stored as one that has ended."""

    def apply(self, connection: Connection) -> None:
        of_scope, total, last_number = connection.execute(
            """
            SELECT (SELECT count(*) FROM schedules WHERE scope = :scope AND over_at IS NULL),
            (SELECT count(*) FROM schedules),
            (SELECT coalesce(max(number), 0) FROM schedules WHERE scope = :scope)
            """,
            {"scope": self.scope},
        ).fetchone()
        if of_scope >= self.max_per_scope or total >= self.max_total:
            raise TooMany(f"There are {of_scope} schedules in {self.scope}, and {total} in all.")
        due, planned = _micros(self.due_at), _micros(self.planned_at or self.due_at)
        state = ScheduleState.ENDED if self.is_over else ScheduleState.ACTIVE
        over = to_micros(self.about.created_at) if self.is_over else None
        revived = connection.execute(
            "UPDATE schedules SET state = ?, due_at = ?, planned_at = ?, failures = 0, seen = '', note = '', "
            "number = CASE WHEN scope = ? THEN number ELSE ? END, scope = ?, over_at = ?, about = ? "
            "WHERE id = ? AND over_at IS NOT NULL",
            (state, due, planned, self.scope, last_number + 1, self.scope, over, encode(self.about), self.id),
        )
        if revived.rowcount:
            return
        inserted = connection.execute(
            "INSERT INTO schedules (id, scope, number, state, due_at, planned_at, over_at, about) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (self.id, self.scope, self.number or last_number + 1, state, due, planned, over, encode(self.about)),
        )
        if not inserted.rowcount:
            raise NumberTaken(f"The schedule {self.id} exists already, or its number is taken.")


class NewRun(Struct, frozen=True, kw_only=True):
    """A run as its first commit has it. A second one in a row with the same `note` that did nothing is only counted."""

    number: int
    state: RunState
    planned_at: datetime
    session: str = ""
    note: str = ""


class FireSchedule(Operation, frozen=True, kw_only=True):
    """Move a schedule from `due_at` to its next time and record its run, in the commit that accepts the message.

    Raises `WrongState` if it is not due at `due_at` any more: it has been fired, changed or deleted.
    """

    id: str
    due_at: datetime
    next_at: datetime | None
    planned_at: datetime | None
    """The regular time of `next_at`."""
    at: datetime
    state: ScheduleState
    run: NewRun
    seen: str
    failures: int
    note: str

    def apply(self, connection: Connection) -> None:
        run, at = self.run, to_micros(self.at)
        moved = connection.execute(
            """
            UPDATE schedules SET due_at = :next, planned_at = :planned, ran_for = :ran_for, is_forced = 0,
            state = :state, over_at = :over, seen = :seen, failures = :failures, note = :note
            WHERE id = :id AND due_at = :due
            """,
            {
                "id": self.id,
                "due": to_micros(self.due_at),
                "next": _micros(self.next_at),
                "planned": _micros(self.planned_at),
                "ran_for": to_micros(run.planned_at),
                "state": self.state,
                "over": at if self.state is ScheduleState.ENDED else None,
                "seen": self.seen,
                "failures": self.failures,
                "note": self.note,
            },
        )
        if not moved.rowcount:
            raise WrongState(f"The schedule {self.id} is no longer due at {self.due_at}.")
        if run.session:
            connection.execute("UPDATE schedules SET session = ? WHERE id = ?", (run.session, self.id))
        ended = None if run.state is RunState.RUNNING else at
        if run.state in {RunState.UNCHANGED, RunState.SKIPPED}:
            counted = connection.execute(
                "UPDATE schedule_runs SET times = times + 1, planned_at = ?, ended_at = ? "
                "WHERE schedule = ? AND number = ? AND state = ? AND note = ?",
                (to_micros(run.planned_at), at, self.id, run.number - 1, run.state, run.note),
            )
            if counted.rowcount:
                return
        connection.execute("UPDATE schedules SET runs = ? WHERE id = ?", (run.number, self.id))
        connection.execute(
            "INSERT INTO schedule_runs (schedule, number, state, planned_at, started_at, ended_at, session, note) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (self.id, run.number, run.state, to_micros(run.planned_at), at, ended, run.session, run.note),
        )
        connection.execute(
            "DELETE FROM schedule_runs WHERE schedule = ? AND number <= ?", (self.id, run.number - RUNS_KEPT)
        )


class EndRun(Operation, frozen=True, kw_only=True):
    """End a run together with its turn. One that has failed makes its schedule due at `retry_at`, if that is given.

    Then also a schedule that has run for the last time is active again. Does nothing if the run has ended already.
    """

    schedule: str
    number: int
    state: RunState
    at: datetime
    note: str = ""
    failures: int = 0
    retry_at: datetime | None = None

    def apply(self, connection: Connection) -> None:
        ended = connection.execute(
            "UPDATE schedule_runs SET state = ?, ended_at = ?, note = ? "
            "WHERE schedule = ? AND number = ? AND state = 'running'",
            (self.state, to_micros(self.at), self.note, self.schedule, self.number),
        )
        if not ended.rowcount or self.state is RunState.STOPPED:
            return
        connection.execute(
            "UPDATE schedules SET failures = ?, note = ? WHERE id = ? AND state <> 'paused'",
            (self.failures, self.note, self.schedule),
        )
        if self.retry_at is not None:
            retry = to_micros(self.retry_at)
            connection.execute(
                "UPDATE schedules SET state = 'active', over_at = NULL, due_at = ?, "
                "planned_at = coalesce(planned_at, ?) WHERE id = ? AND state IN ('active', 'ended') AND is_forced = 0",
                (retry, retry, self.schedule),
            )


class AddRunUsage(Operation, frozen=True, kw_only=True):
    """Add what a request of a run has cost, on a day (UTC, YYYY-MM-DD)."""

    schedule: str
    number: int
    day: str
    tokens: int
    cost_micros: int

    def apply(self, connection: Connection) -> None:
        connection.execute(
            "UPDATE schedule_runs SET tokens = tokens + ?, cost_micros = cost_micros + ? "
            "WHERE schedule = ? AND number = ?",
            (self.tokens, self.cost_micros, self.schedule, self.number),
        )
        connection.execute(
            "UPDATE schedules SET spent_tokens = 0, spent_micros = 0, spent_day = ? WHERE id = ? AND spent_day <> ?",
            (self.day, self.schedule, self.day),
        )
        connection.execute(
            "UPDATE schedules SET spent_tokens = spent_tokens + ?, spent_micros = spent_micros + ? WHERE id = ?",
            (self.tokens, self.cost_micros, self.schedule),
        )


class RescheduleSchedule(Operation, frozen=True, kw_only=True):
    """Move a schedule to another time without a run. Raises `WrongState` if it is not due at `due_at` any more."""

    id: str
    due_at: datetime
    next_at: datetime | None
    planned_at: datetime | None

    def apply(self, connection: Connection) -> None:
        moved = connection.execute(
            "UPDATE schedules SET due_at = ?, planned_at = ? WHERE id = ? AND due_at = ?",
            (_micros(self.next_at), _micros(self.planned_at), self.id, to_micros(self.due_at)),
        )
        if not moved.rowcount:
            raise WrongState(f"The schedule {self.id} is no longer due at {self.due_at}.")


class PauseSchedule(Operation, frozen=True, kw_only=True):
    """Let a schedule wait until it is resumed. Raises `WrongState` if it is not active."""

    id: str
    note: str = ""

    def apply(self, connection: Connection) -> None:
        paused = connection.execute(
            "UPDATE schedules SET state = 'paused', due_at = NULL, is_forced = 0, note = ? "
            "WHERE id = ? AND state = 'active'",
            (self.note, self.id),
        )
        if not paused.rowcount:
            raise WrongState(f"The schedule {self.id} is not active.")


class ResumeSchedule(Operation, frozen=True, kw_only=True):
    """Let a paused schedule run from `due_at` on. Raises `WrongState` if it is not paused."""

    id: str
    due_at: datetime
    planned_at: datetime | None = None
    """As of `AddSchedule`."""

    def apply(self, connection: Connection) -> None:
        planned = to_micros(self.planned_at or self.due_at)
        resumed = connection.execute(
            # With another number of runs, its last answer does not count any more, which could not be delivered.
            "UPDATE schedules SET state = 'active', due_at = ?, planned_at = ?, failures = 0, note = '', "
            "runs = runs + 1 WHERE id = ? AND state = 'paused'",
            (to_micros(self.due_at), planned, self.id),
        )
        if not resumed.rowcount:
            raise WrongState(f"The schedule {self.id} is not paused.")


class RunSchedule(Operation, frozen=True, kw_only=True):
    """Make a schedule due now, besides its regular times. Raises `WrongState` if it has ended."""

    id: str
    at: datetime

    def apply(self, connection: Connection) -> None:
        forced = connection.execute(
            "UPDATE schedules SET due_at = ?, is_forced = 1 WHERE id = ? AND state IN ('active', 'paused')",
            (to_micros(self.at), self.id),
        )
        if not forced.rowcount:
            raise WrongState(f"The schedule {self.id} has ended.")


class ChangeSchedule(Operation, frozen=True, kw_only=True):
    """Replace what a schedule does, and move it to its new next time. It keeps its runs, its number and its state.

    In another scope it gets the next number there. Raises `WrongState` if it has ended.
    """

    id: str
    scope: str
    about: ScheduleContent
    due_at: datetime | None
    planned_at: datetime | None = None
    """As of `AddSchedule`."""

    def apply(self, connection: Connection) -> None:
        due, planned = _micros(self.due_at), _micros(self.planned_at or self.due_at)
        changed = connection.execute(
            "UPDATE schedules SET about = ?, planned_at = ?, seen = '', failures = 0, is_forced = 0, "
            "due_at = CASE WHEN state = 'active' THEN CAST(? AS BIGINT) END WHERE id = ? AND over_at IS NULL",
            (encode(self.about), planned, due, self.id),
        )
        if not changed.rowcount:
            raise WrongState(f"The schedule {self.id} has ended.")
        connection.execute(
            "UPDATE schedules SET scope = ?, session = '', number = "
            "(SELECT coalesce(max(number), 0) + 1 FROM schedules WHERE scope = ?) WHERE id = ? AND scope <> ?",
            (self.scope, self.scope, self.id, self.scope),
        )


class EndSchedule(Operation, frozen=True, kw_only=True):
    """End a schedule. Its history stays for a while. Raises `WrongState` if it has ended."""

    id: str
    state: ScheduleState
    at: datetime
    note: str = ""

    def apply(self, connection: Connection) -> None:
        ended = connection.execute(
            "UPDATE schedules SET state = ?, due_at = NULL, is_forced = 0, over_at = ?, note = ? "
            "WHERE id = ? AND over_at IS NULL",
            (self.state, to_micros(self.at), self.note, self.id),
        )
        if not ended.rowcount:
            raise WrongState(f"The schedule {self.id} has ended.")
