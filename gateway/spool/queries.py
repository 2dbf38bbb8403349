"""Queries of the spool. They run in the writer thread, in order with the commits."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from gateway.contract import Address, Receipt
from gateway.database.connection import Connection
from gateway.shards import shard_of
from gateway.spool.operations import REVIVED, MarkSeen, quoted
from gateway.spool.rows import (
    INBOX_OPEN,
    OUTBOX_OPEN,
    ArrivalRow,
    DailyUsage,
    InboxRow,
    InboxState,
    OutboxRow,
    OutboxState,
    RecoveredWork,
    ReminderRow,
    RunState,
    ScheduleRow,
    ScheduleRun,
    ScheduleState,
    SpoolListing,
    Stats,
    UsageTotal,
    decode_draft,
    decode_inbound,
    decode_outbound,
    decode_receipt,
    decode_reminder,
    decode_schedule,
    from_micros,
    to_micros,
)

Columns = tuple[Any, ...]  # Any: the types of the columns.

_Row = TypeVar("_Row", InboxRow, OutboxRow)

_INBOX = """
    SELECT turn, state, scope, session, number, agent, accepted_at, attempts, answered_by, note, inbound FROM inbox
"""
_OUTBOX = "SELECT key, turn, state, created_at, sending_at, attempts, reason, message FROM outbox"

# These conditions repeat those of the partial indexes, because SQLite uses such an index only then.
_UNANSWERED = "state NOT IN ('answered', 'abandoned')"
_UNDELIVERED = "state <> 'delivered'"

_SUMS = """
    CAST(coalesce(sum(input_tokens), 0) AS BIGINT), CAST(coalesce(sum(cached_tokens), 0) AS BIGINT),
    CAST(coalesce(sum(output_tokens), 0) AS BIGINT), CAST(coalesce(sum(cost_micros), 0) AS BIGINT)
"""
_AMOUNTS = ("input_tokens", "cached_tokens", "output_tokens", "cost_micros")
_COLUMNS = ", ".join(_AMOUNTS)
_KNOWN = ", ".join(f"CAST(sum({name}) AS BIGINT) AS known_{name}" for name in _AMOUNTS)
_UNKNOWN = ", ".join(f"{name} - coalesce(known_{name}, 0) AS {name}" for name in _AMOUNTS)

# The inner key is `ReminderRow.next_key` of the last send.
_REMINDERS = """
    SELECT id, scope, number, due_at, cron, rung_for, rings, failures,
    (SELECT state FROM outbox WHERE key = 'remind-' || reminders.id || '-' || rings), about
    FROM reminders WHERE due_at IS NOT NULL
"""
# The events are `run_event` of a run. The answer of a turn has the key of the turn.
_SCHEDULES = f"""
    SELECT id, scope, number, state, due_at, planned_at, ran_for, is_forced, runs, failures, session, seen, note,
    spent_day, spent_tokens, spent_micros,
    (SELECT outbox.state FROM outbox WHERE outbox.key = coalesce(
        (SELECT turn FROM inbox WHERE event_id = 'schedule-' || schedules.id || '-' || runs ORDER BY id DESC LIMIT 1),
        'schedule-' || schedules.id || '-' || runs
    )),
    (SELECT count(*) FROM schedule_runs JOIN inbox ON event_id = 'schedule-' || schedule || '-' || schedule_runs.number
        WHERE schedule = schedules.id AND schedule_runs.state = 'running'
        AND inbox.state IN ({quoted(INBOX_OPEN)})),
    about FROM schedules
"""  # noqa: S608 - constants only
# A message of a run that was dropped, such as with its session, ends the run as well.
_SCHEDULE_RUNS = f"""
    SELECT number, CASE WHEN state = 'running' AND NOT EXISTS (
        SELECT 1 FROM inbox WHERE event_id = 'schedule-' || schedule || '-' || schedule_runs.number
        AND inbox.state IN ({quoted(INBOX_OPEN)})
    ) THEN 'stopped' ELSE state END,
    planned_at, started_at, ended_at, times, session, note, tokens, cost_micros FROM schedule_runs
"""  # noqa: S608 - constants only


_OPEN_INBOX = f"{_INBOX} WHERE {_UNANSWERED} AND state IN ({quoted(INBOX_OPEN)})"
_OPEN_OUTBOX = f"{_OUTBOX} WHERE {_UNDELIVERED} AND state IN ({quoted(OUTBOX_OPEN)})"
# Without a cluster, rows have no scope. Those without a turn either are the business of the owner of shard 0.
_OPEN_OUTBOX_OF_SHARDS = f"""
    SELECT * FROM (
        SELECT key, turn, state, created_at, sending_at, attempts, reason, message,
            coalesce(scope, (SELECT inbox.scope FROM inbox WHERE inbox.turn = outbox.turn), 'shard:0') AS scope
        FROM outbox WHERE {_UNDELIVERED} AND state IN ({quoted(OUTBOX_OPEN)}) ORDER BY id
    ) AS undelivered WHERE gatehouse_shard(scope) = ANY(?)
"""  # noqa: S608 - constants only
_REVIVED_OF_SHARDS = f"{_OPEN_OUTBOX_OF_SHARDS} AND attempts = {REVIVED}"


def recover(shards: Sequence[int] | None, connection: Connection) -> RecoveredWork:
    """Return the unfinished rows: all, or those of some shards. Rows that cannot be read become dead, but are kept."""
    if shards is None:
        found_inbox = connection.execute(f"{_OPEN_INBOX} ORDER BY id")
        found_outbox = connection.execute(f"{_OPEN_OUTBOX} ORDER BY id")
    else:
        found_inbox = connection.execute(f"{_OPEN_INBOX} AND gatehouse_shard(scope) = ANY(?) ORDER BY id", (shards,))
        _note_revived(shards, connection)
        found_outbox = connection.execute(_OPEN_OUTBOX_OF_SHARDS, (shards,))
    inbox, lost_turns = _readable(_inbox_row, found_inbox)
    outbox, lost_keys = _readable(_outbox_row, found_outbox)
    why = "This version of Gatehouse can't read it."
    connection.executemany("UPDATE inbox SET state = 'dead', note = ? WHERE turn = ?", [(why, t) for t in lost_turns])
    connection.executemany("UPDATE outbox SET state = 'dead', reason = ? WHERE key = ?", [(why, k) for k in lost_keys])
    drafts: dict[str, Receipt | None] = {}
    for turn, receipt in connection.execute("SELECT turn, receipt FROM drafts"):
        try:
            drafts[turn] = decode_draft(receipt)
        except msgspec.DecodeError:
            drafts[turn] = None  # A draft with an unknown id cannot be edited, so its answer is sent as a new message.
    if shards is not None:  # Other nodes use the rest.
        turns = {row.turn for row in inbox} | {row.turn for row in outbox}
        drafts = {key: receipt for key, receipt in drafts.items() if key.partition(".")[0] in turns}
    return RecoveredWork(
        inbox=tuple(inbox),
        outbox=tuple(outbox),
        drafts=drafts,
        unreadable=(*lost_turns, *lost_keys),
    )


def unanswered(shards: Sequence[int], connection: Connection) -> list[InboxRow]:
    """Return the unanswered messages of some shards that can be read."""
    found = connection.execute(f"{_OPEN_INBOX} AND gatehouse_shard(scope) = ANY(?) ORDER BY id", (shards,))
    return _readable(_inbox_row, found)[0]


def take_revived(shards: Sequence[int], connection: Connection) -> list[OutboxRow]:
    """Return the replies of some shards that a person has revived since the last call."""
    rows, _ = _readable(_outbox_row, _note_revived(shards, connection))
    return rows


def _note_revived(shards: Sequence[int], connection: Connection) -> list[Columns]:
    found = connection.execute(_REVIVED_OF_SHARDS, (shards,)).fetchall()
    connection.executemany("UPDATE outbox SET attempts = 0 WHERE key = ?", [(key,) for key, *_ in found])
    return found


def arrivals(after: Mapping[int, int], limit: int, connection: Connection) -> list[ArrivalRow]:
    """Return messages that wait for the owner of some shards, in the order in which they were accepted.

    `after` has the position of each shard behind which they are.
    """
    found = connection.execute(
        "SELECT shard, position, scope, inbound FROM arrival "
        "JOIN unnest(?::bigint[], ?::bigint[]) AS known (number, last) ON shard = number AND position > last "
        "ORDER BY shard, position LIMIT ?",
        (list(after), list(after.values()), limit),
    )
    rows: list[ArrivalRow] = []
    for shard, position, scope, stored in found:
        try:
            inbound = decode_inbound(stored)
        except msgspec.DecodeError:
            inbound = None
        rows.append(ArrivalRow(shard=shard, position=position, scope=scope, inbound=inbound))
    return rows


def delivered_ids(since: datetime, connection: Connection) -> set[str]:
    found = connection.execute(
        "SELECT receipt FROM outbox WHERE state = 'delivered' AND delivered_at >= ?", (to_micros(since),)
    )
    return {decode_receipt(receipt).message_id for (receipt,) in found if receipt is not None}


def facts(prefix: str, connection: Connection) -> dict[str, str]:
    if not prefix:
        return dict(connection.execute("SELECT name, value FROM facts").fetchall())
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)  # Names are compared byte by byte, so this is behind all of them.
    return dict(
        connection.execute("SELECT name, value FROM facts WHERE name >= ? AND name < ?", (prefix, end)).fetchall()
    )


def facts_after(prefix: str, after: str, limit: int, connection: Connection) -> dict[str, str]:
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    wanted = (max(prefix, after), after, end, limit)
    query = "SELECT name, value FROM facts WHERE name >= ? AND name > ? AND name < ? ORDER BY name LIMIT ?"
    return dict(connection.execute(query, wanted).fetchall())


def count_facts(prefix: str, connection: Connection) -> int:
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    found = connection.execute("SELECT count(*) FROM facts WHERE name >= ? AND name < ?", (prefix, end)).fetchone()
    return int(found[0]) if found else 0


def find_message(address: Address, event_id: str, connection: Connection) -> InboxRow | None:
    found = connection.execute(f"{_INBOX} WHERE event_id = ? AND event_id <> '' ORDER BY id DESC", (event_id,))
    rows, _ = _readable(_inbox_row, found)
    for row in rows:
        there = row.inbound.address
        if (there.channel, there.account, there.peer) == (address.channel, address.account, address.peer):
            return row
    return None


def open_messages(session: str, connection: Connection) -> list[InboxRow]:
    found = connection.execute(
        f"{_INBOX} WHERE {_UNANSWERED} AND state IN ({quoted(INBOX_OPEN)}) AND session = ? ORDER BY id", (session,)
    )
    return _readable(_inbox_row, found)[0]


def was_seen(event: MarkSeen, connection: Connection) -> bool:
    if event.arrival is not None and event.arrival.position:
        place = (shard_of(event.arrival.scope), event.arrival.position)
        waiting = connection.execute("SELECT 1 FROM arrival WHERE shard = ? AND position = ?", place)
        return waiting.fetchone() is None
    found = connection.execute(
        "SELECT 1 FROM seen WHERE channel = ? AND account = ? AND event_id = ?",
        (event.channel, event.account, event.event_id),
    )
    return found.fetchone() is not None


def listing(limit: int, connection: Connection) -> SpoolListing:
    inbox, lost_turns = _readable(
        _inbox_row,
        connection.execute(f"{_INBOX} WHERE {_UNANSWERED} AND state = 'dead' ORDER BY id LIMIT ?", (limit,)),
    )
    outbox, lost_keys = _readable(
        _outbox_row, connection.execute(f"{_OUTBOX} WHERE {_UNDELIVERED} ORDER BY id LIMIT ?", (limit,))
    )
    return SpoolListing(inbox=tuple(inbox), outbox=tuple(outbox), unreadable=(*lost_turns, *lost_keys))


def entries_after(
    session: str, after: int, limit: int, connection: Connection
) -> tuple[str, list[tuple[int, bytes]]] | None:
    """Return the entries of `session` behind seq `after`, or else the first entries of the next session."""
    lines = connection.execute(
        "SELECT seq, line FROM notes WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?", (session, after, limit)
    ).fetchall()
    if lines:
        return session, lines
    following = connection.execute(
        "SELECT session FROM notes WHERE session > ? ORDER BY session LIMIT 1", (session,)
    ).fetchone()
    return None if following is None else entries_after(following[0], -1, limit, connection)


def drop_entries(upto: Sequence[tuple[str, int]], limit: int, connection: Connection) -> int:
    """Delete at most `limit` entries of the given sessions up to the given seqs. Returns how many are done."""
    # A session may have far more entries than one step should delete, or none.
    for done, (session, seq) in enumerate(upto):
        limit -= connection.execute(
            """
            DELETE FROM notes WHERE session = :session AND seq IN (
                SELECT seq FROM notes WHERE session = :session AND seq <= :upto ORDER BY seq LIMIT :limit
            )
            """,
            {"session": session, "upto": seq, "limit": limit},
        ).rowcount
        if limit <= 0:
            return done
    return len(upto)


def usage(day: str, person: str | None, connection: Connection) -> UsageTotal:
    statement = f"SELECT {_SUMS} FROM usage WHERE day = ?"  # noqa: S608 - constants only
    if person is None:
        return _usage_total(connection.execute(statement, (day,)).fetchone())
    return _usage_total(connection.execute(f"{statement} AND person = ?", (day, person)).fetchone())


def top_usage(day: str, limit: int, connection: Connection) -> list[tuple[str, UsageTotal]]:
    statement = f"""
        SELECT person, {_SUMS} FROM usage WHERE day = ? GROUP BY person
        ORDER BY sum(input_tokens + output_tokens) DESC, person LIMIT ?
    """  # noqa: S608 - constants only
    return [(person, _usage_total(sums)) for person, *sums in connection.execute(statement, (day, limit))]


def usage_between(since: str, until: str, person: str | None, limit: int, connection: Connection) -> list[DailyUsage]:
    """Return the usage from one day to another, the newest first, for each person, model and agent.

    What `usage` has more than `agent_usage` is that of an unknown agent: an older version has charged it.
    """
    condition, values = ("", ()) if person is None else ("AND person = ?", (person,))
    statement = f"""
        WITH known AS (
            SELECT day, person, model, agent, {_COLUMNS} FROM agent_usage WHERE day >= ? AND day <= ? {condition}
        )
        SELECT * FROM (
            SELECT * FROM known
            UNION ALL
            SELECT day, person, model, '', {_UNKNOWN}
            FROM usage LEFT JOIN (
                SELECT day, person, model, {_KNOWN} FROM known GROUP BY day, person, model
            ) AS counted USING (day, person, model)
            WHERE day >= ? AND day <= ? {condition}
        ) AS found
        WHERE input_tokens > 0 OR output_tokens > 0 OR cost_micros > 0
        ORDER BY day DESC, person, model, agent LIMIT ?
    """  # noqa: S608 - constants only
    span = (since, until, *values)
    return [
        DailyUsage(day=day, person=name, model=model, agent=agent, total=_usage_total(sums))
        for day, name, model, agent, *sums in connection.execute(statement, (*span, *span, limit))
    ]


def _usage_total(sums: Sequence[int]) -> UsageTotal:
    read, cached, written, cost = sums
    return UsageTotal(input_tokens=read, cached_tokens=cached, output_tokens=written, cost_micros=cost)


def reminders(scope: str, connection: Connection) -> list[ReminderRow]:
    found = connection.execute(f"{_REMINDERS} AND scope = ? ORDER BY number", (scope,))
    return _readable_reminders(connection, found.fetchall())


_OF_SHARDS = "AND gatehouse_shard(scope) = ANY(?)"


def due_reminders(now: datetime, limit: int, shards: Sequence[int] | None, connection: Connection) -> list[ReminderRow]:
    # The caller sends what this returns and asks again, until nothing is due.
    # If none of the first rows can be read, they are ended, and the next ones are due.
    condition, values = ("", ()) if shards is None else (_OF_SHARDS, (shards,))
    due = f"{_REMINDERS} AND due_at <= ? {condition} ORDER BY due_at LIMIT ?"
    while rows := connection.execute(due, (to_micros(now), *values, limit)).fetchall():
        if readable := _readable_reminders(connection, rows):
            return readable
    return []


def recurring_reminders(shards: Sequence[int] | None, connection: Connection) -> list[ReminderRow]:
    condition, values = ("", ()) if shards is None else (_OF_SHARDS, (shards,))
    found = connection.execute(f"{_REMINDERS} AND cron IS NOT NULL {condition}", values)
    return _readable_reminders(connection, found.fetchall())


def next_reminder(shards: Sequence[int] | None, connection: Connection) -> datetime | None:
    condition, values = ("", ()) if shards is None else (_OF_SHARDS, (shards,))
    first = f"SELECT min(due_at) FROM reminders WHERE due_at IS NOT NULL {condition}"  # noqa: S608 - constants only
    (micros,) = connection.execute(first, values).fetchone()
    return None if micros is None else from_micros(micros)


def schedules(
    connection: Connection, *, scope: str = "", ended: bool = False, after: str = "", limit: int = 0
) -> list[ScheduleRow]:
    """Return schedules by id, those behind `after`: all, or those of a scope."""
    conditions = ["id > ?", *([] if ended else ["over_at IS NULL"]), *(["scope = ?"] if scope else [])]
    values = [after, *([scope] if scope else []), *([limit] if limit else [])]
    statement = f"{_SCHEDULES} WHERE {' AND '.join(conditions)} ORDER BY id {'LIMIT ?' if limit else ''}"
    return _readable_schedules(connection, connection.execute(statement, values).fetchall())


def schedules_of_shards(
    shards: Sequence[int] | None, after: str, limit: int, connection: Connection
) -> list[ScheduleRow]:
    """Return the schedules of this node behind the id `after` that have not ended."""
    condition, values = ("", ()) if shards is None else (_OF_SHARDS, (shards,))
    found = connection.execute(
        f"{_SCHEDULES} WHERE over_at IS NULL AND id > ? {condition} ORDER BY id LIMIT ?", (after, *values, limit)
    )
    return _readable_schedules(connection, found.fetchall())


def find_schedule(name: str, connection: Connection) -> ScheduleRow | None:
    """Return a schedule in any state."""
    rows = _readable_schedules(connection, connection.execute(f"{_SCHEDULES} WHERE id = ?", (name,)).fetchall())
    return rows[0] if rows else None


def due_schedules(
    now: datetime, limit: int, excluded: Sequence[str], shards: Sequence[int] | None, connection: Connection
) -> list[ScheduleRow]:
    condition, values = _due_condition(excluded, shards)
    due = f"{_SCHEDULES} WHERE due_at IS NOT NULL AND due_at <= ? {condition} ORDER BY due_at LIMIT ?"
    while rows := connection.execute(due, (to_micros(now), *values, limit)).fetchall():
        if readable := _readable_schedules(connection, rows):
            return readable
    return []


def next_schedule(excluded: Sequence[str], shards: Sequence[int] | None, connection: Connection) -> datetime | None:
    condition, values = _due_condition(excluded, shards)
    first = f"SELECT min(due_at) FROM schedules WHERE due_at IS NOT NULL {condition}"  # noqa: S608 - constants only
    (micros,) = connection.execute(first, values).fetchone()
    return None if micros is None else from_micros(micros)


def _due_condition(excluded: Sequence[str], shards: Sequence[int] | None) -> tuple[str, tuple[object, ...]]:
    marks = f"AND id NOT IN ({', '.join('?' * len(excluded))})" if excluded else ""
    return (marks, (*excluded,)) if shards is None else (f"{marks} {_OF_SHARDS}", (*excluded, shards))


def schedule_runs(name: str, limit: int, connection: Connection) -> list[ScheduleRun]:
    """Return the newest runs of a schedule, the newest first."""
    found = connection.execute(f"{_SCHEDULE_RUNS} WHERE schedule = ? ORDER BY number DESC LIMIT ?", (name, limit))
    return [
        ScheduleRun(
            number=number,
            state=RunState(state),
            planned_at=from_micros(planned_at),
            started_at=from_micros(started_at),
            ended_at=None if ended_at is None else from_micros(ended_at),
            times=times,
            session=session,
            note=note,
            tokens=tokens,
            cost_micros=cost_micros,
        )
        for (*(number, state, planned_at, started_at, ended_at, times, session, note, tokens, cost_micros),) in found
    ]


def schedule_counts(connection: Connection) -> dict[str, int]:
    """Return how many schedules there are by state, and as `failing` those whose last run has failed."""
    found = dict(
        connection.execute("SELECT state, count(*) FROM schedules WHERE over_at IS NULL GROUP BY state").fetchall()
    )
    (failing,) = connection.execute(
        "SELECT count(*) FROM schedules WHERE over_at IS NULL AND state = 'active' AND failures > 0"
    ).fetchone()
    return {"active": found.get("active", 0), "paused": found.get("paused", 0), "failing": failing}


def stats(connection: Connection, *, seen: int, file_bytes: int) -> Stats:
    inbox = connection.execute(f"SELECT state, count(*) FROM inbox WHERE {_UNANSWERED} GROUP BY state")  # noqa: S608 - constants only
    outbox = connection.execute(f"SELECT state, count(*) FROM outbox WHERE {_UNDELIVERED} GROUP BY state")  # noqa: S608 - constants only
    return Stats(
        inbox={InboxState(state): count for state, count in inbox},
        outbox={OutboxState(state): count for state, count in outbox},
        seen=seen,
        file_bytes=file_bytes,
    )


def _readable(read: Callable[[Columns], _Row], rows: Iterable[Columns]) -> tuple[list[_Row], list[str]]:
    """Return the rows that this version can read, and the names of the others."""
    good: list[_Row] = []
    bad: list[str] = []
    for row in rows:
        try:
            good.append(read(row))
        except (msgspec.DecodeError, ValueError):
            bad.append(row[0])
    return good, bad


def _inbox_row(row: Columns) -> InboxRow:
    turn, state, scope, session, number, agent, accepted_at, attempts, answered_by, note, inbound = row
    return InboxRow(
        turn=turn,
        state=InboxState(state),
        inbound=decode_inbound(inbound),
        scope=scope,
        session=session,
        number=number,
        agent=agent,
        accepted_at=from_micros(accepted_at),
        attempts=attempts,
        answered_by=answered_by,
        note=note,
    )


def _outbox_row(row: Columns) -> OutboxRow:
    key, turn, state, created_at, sending_at, attempts, reason, message, *scope = row
    return OutboxRow(
        key=key,
        turn=turn,
        state=OutboxState(state),
        message=decode_outbound(message),
        created_at=from_micros(created_at),
        sending_at=None if sending_at is None else from_micros(sending_at),
        attempts=attempts,
        reason=reason,
        scope=scope[0] if scope else "",
    )


def _readable_reminders(connection: Connection, rows: Iterable[Columns]) -> list[ReminderRow]:
    """Return the rows that this version can read. End the others: they would stay due for ever."""
    good: list[ReminderRow] = []
    for row in rows:
        name, scope, number, due_at, cron, rung_for, rings, failures, outbox_state, about = row
        try:
            reminder = ReminderRow(
                id=name,
                scope=scope,
                number=number,
                due_at=from_micros(due_at),
                cron=cron,
                last_sent_for=None if rung_for is None else from_micros(rung_for),
                times_sent=rings,
                failures=failures,
                last_delivery=None if outbox_state is None else OutboxState(outbox_state),
                about=decode_reminder(about),
            )
        except (msgspec.DecodeError, ValueError):
            connection.execute("UPDATE reminders SET due_at = NULL, over_at = due_at WHERE id = ?", (name,))
        else:
            good.append(reminder)
    return good


def _readable_schedules(connection: Connection, rows: Iterable[Columns]) -> list[ScheduleRow]:
    """Return the rows that this version can read. Pause the others: they would stay due for ever."""
    good: list[ScheduleRow] = []
    for row in rows:
        name, scope, number, state, due_at, planned_at, ran_for, is_forced, runs, failures, session, *rest = row
        seen, note, spent_day, spent_tokens, spent_micros, outbox_state, running, about = rest
        try:
            schedule = ScheduleRow(
                id=name,
                scope=scope,
                number=number,
                state=ScheduleState(state),
                due_at=None if due_at is None else from_micros(due_at),
                planned_at=None if planned_at is None else from_micros(planned_at),
                ran_for=None if ran_for is None else from_micros(ran_for),
                is_forced=bool(is_forced),
                runs=runs,
                failures=failures,
                session=session,
                seen=seen,
                note=note,
                spent_day=spent_day,
                spent_tokens=spent_tokens,
                spent_micros=spent_micros,
                last_delivery=None if outbox_state is None else OutboxState(outbox_state),
                is_running=bool(running),
                about=decode_schedule(about),
            )
        except (msgspec.DecodeError, ValueError):
            connection.execute("UPDATE schedules SET due_at = NULL, state = 'paused' WHERE id = ?", (name,))
        else:
            good.append(schedule)
    return good
