"""What every message does to the tables, for many messages in one go.

Between two statements the writer's thread has to wait for the interpreter, which a busy event loop gives up only now
and then. So the number of statements counts, and not that of rows.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, TypeVar

from gateway.spool import operations as o
from gateway.spool import reminders
from gateway.spool.errors import CommitRefused, Conflict, Duplicate, WrongState
from gateway.spool.rows import (
    INBOX_MOVES,
    INBOX_OPEN,
    OUTBOX_MOVES,
    InboxState,
    OutboxState,
    encode,
    sources,
    to_micros,
)

Connection = sqlite3.Connection
_Row = tuple[object, ...]
_Operation = TypeVar("_Operation")

_MOST_ROWS = 64


class Unclear(Exception):
    """One of several would be refused, and nobody knows which: they have to be done one by one."""


def listed(states: Iterable[str]) -> str:
    """Return states as SQL has them behind IN."""
    return ", ".join(f"'{state}'" for state in sorted(states))


def _settled(state: InboxState) -> str:
    return (
        f"UPDATE inbox SET state = '{state}', answered_by = told.column2, note = told.column3 "  # noqa: S608 - constants only
        f"FROM (VALUES {{rows}}) AS told "
        f"WHERE inbox.turn = told.column1 AND inbox.state IN ({listed(sources(INBOX_MOVES, state))})"
    )


_TAKE = "INSERT OR IGNORE INTO seen (channel, account, event_id, at) VALUES {rows}"
_ACCEPT = (
    "INSERT OR IGNORE INTO inbox "
    "(turn, state, attempts, scope, session, number, agent, accepted_at, event_id, inbound) VALUES {rows}"
)
_BEGIN = (
    "UPDATE inbox SET state = 'running', attempts = attempts + 1 WHERE turn IN (VALUES {rows}) "  # noqa: S608 - constants only
    f"AND state IN ({listed(sources(INBOX_MOVES, InboxState.RUNNING))})"
)
_NOTE = "INSERT OR IGNORE INTO notes (session, seq, line) VALUES {rows}"
_NOTED = "SELECT line FROM notes WHERE session = ? AND seq = ?"
_SETTLE = {state: _settled(state) for state in InboxState}
_SEND = "INSERT OR IGNORE INTO outbox (key, turn, state, created_at, sending_at, message) VALUES {rows}"
_DELIVERED = (
    "UPDATE outbox SET state = 'delivered', receipt = told.column2, delivered_at = told.column3, reason = '' "  # noqa: S608 - constants only
    "FROM (VALUES {rows}) AS told "
    f"WHERE outbox.key = told.column1 AND outbox.state IN ({listed(sources(OUTBOX_MOVES, OutboxState.DELIVERED))})"
)


def do_together(connection: Connection, operations: Iterable[o.Operation]) -> None:
    """Do operations that are plain, kind by kind; `Unclear` when one of them is refused, and then all are undone."""
    by_kind: dict[type[o.Operation], list[o.Operation]] = {}
    for operation in operations:
        by_kind.setdefault(type(operation), []).append(operation)
    for kind, do in TOGETHER.items():
        if kind in by_kind:
            do(connection, by_kind[kind])


def moves(operations: Sequence[o.Operation]) -> set[str] | None:
    """Return which rows the operations of one call move from state to state: there the order counts.

    None when these are not plain: not all of `TOGETHER`, or in another order than there.
    """
    ranks: dict[str, int] = {}
    for operation in operations:
        rank = _RANKS.get(type(operation))
        row = _moved(operation)
        if rank is None or (row and rank < ranks.get(row, 0)):
            return None
        if row:
            ranks[row] = rank
    return set(ranks) if operations else None


def _moved(operation: o.Operation) -> str:
    if isinstance(operation, (o.AddToInbox, o.StartTurn, o.SetInboxState)):
        return operation.turn
    return operation.key if isinstance(operation, (o.AddToOutbox, o.MarkDelivered)) else ""


def _take(connection: Connection, takes: Sequence[o.MarkSeen]) -> None:
    rows = [(take.channel, take.account, take.event_id, to_micros(take.at)) for take in takes]
    if not _has_changed_all(connection, _TAKE, rows):
        take = _only(takes)
        raise Duplicate(f"The event {take.event_id} of {take.channel}/{take.account} was taken before.")


def _accept(connection: Connection, accepts: Sequence[o.AddToInbox]) -> None:
    if not _has_changed_all(connection, _ACCEPT, [*map(_accepted, accepts)]):
        raise Duplicate(f"The turn {_only(accepts).turn} was accepted before.")


def _accepted(accept: o.AddToInbox) -> _Row:
    return (
        accept.turn,
        InboxState.RUNNING if accept.is_started else InboxState.RECEIVED,
        int(accept.is_started),
        accept.scope,
        accept.session,
        accept.number,
        accept.agent,
        to_micros(accept.at),
        accept.inbound.event_id,
        encode(accept.inbound),
    )


def _begin(connection: Connection, begins: Sequence[o.StartTurn]) -> None:
    if not _has_changed_all(connection, _BEGIN, [(begin.turn,) for begin in begins]):
        raise wrong_state(connection, "inbox", _only(begins).turn, "be begun")


def _settle(connection: Connection, settles: Sequence[o.SetInboxState]) -> None:
    for state, form in _SETTLE.items():
        moved = [settle for settle in settles if settle.state is state]
        rows = [(settle.turn, settle.answered_by, settle.note) for settle in moved]
        if not _has_changed_all(connection, form, rows):
            raise wrong_state(connection, "inbox", _only(moved).turn, f"become {state}")


def _note(connection: Connection, notes: Sequence[o.AppendEntries]) -> None:
    rows = [(note.session, seq, line) for note in notes for seq, line in enumerate(note.lines, note.first_seq)]
    if _has_changed_all(connection, _NOTE, rows):
        return
    _only(notes)
    for session, seq, line in rows:
        if connection.execute(_NOTED, (session, seq)).fetchone() != (line,):
            raise Conflict(f"Entry {seq} of {session} was noted before, and said something else.")


def _send(connection: Connection, sends: Sequence[o.AddToOutbox]) -> None:
    if not _has_changed_all(connection, _SEND, [*map(_sent, sends)]):
        raise Duplicate(f"The reply {_only(sends).key} was put into the outbox before.")


def _sent(send: o.AddToOutbox) -> _Row:
    at = to_micros(send.at)
    state, sending_at = (OutboxState.SENDING, at) if send.is_sending else (OutboxState.PENDING, None)
    return (send.key, send.turn, state, at, sending_at, encode(send.message))


def _delivered(connection: Connection, delivered: Sequence[o.MarkDelivered]) -> None:
    rows = [(each.key, encode(each.receipt), to_micros(each.at)) for each in delivered]
    if not _has_changed_all(connection, _DELIVERED, rows):
        raise wrong_state(connection, "outbox", _only(delivered).key, "become delivered")


def _has_changed_all(connection: Connection, form: str, rows: Sequence[_Row]) -> bool:
    """Run the statement `form` with `rows` in it; tell whether each of these has changed a row of the table."""
    changed = 0
    for part in _parts(rows):
        statement = _statement(form, len(part[0]), len(part))
        changed += connection.execute(statement, [*chain.from_iterable(part)]).rowcount
    return changed == len(rows)


def _parts(rows: Sequence[_Row]) -> Iterator[Sequence[_Row]]:
    """Cut rows into parts whose sizes are powers of two, so that there are few statements to be remembered."""
    at = 0
    while at < len(rows):
        size = min(_MOST_ROWS, 1 << (len(rows) - at).bit_length() - 1)
        yield rows[at : at + size]
        at += size


@lru_cache(maxsize=128)
def _statement(form: str, width: int, count: int) -> str:
    row = f"({', '.join('?' * width)})"
    return form.format(rows=", ".join([row] * count))


def _only(operations: Sequence[_Operation]) -> _Operation:
    if len(operations) > 1:
        raise Unclear
    return operations[0]


_KEYS = {"inbox": "turn", "outbox": "key"}


def wrong_state(connection: Connection, table: str, key: str, what: str) -> CommitRefused:
    """Say, naming its state, why a row cannot be changed."""
    found = connection.execute(f"SELECT state FROM {table} WHERE {_KEYS[table]} = ?", (key,)).fetchone()  # noqa: S608 - constants only
    return WrongState(f"{key} cannot {what}: it is {found[0] if found else 'not there'}.")


TOGETHER: Mapping[type[o.Operation], Callable[[Connection, Sequence[Any]], None]] = {  # Any: each takes its own type.
    o.MarkSeen: _take,
    o.AddToInbox: _accept,
    o.StartTurn: _begin,
    o.AppendEntries: _note,
    o.SetInboxState: _settle,
    o.AddToOutbox: _send,
    o.MarkDelivered: _delivered,
}
"""In the order in which a message goes through them."""

_RANKS = {kind: rank for rank, kind in enumerate(TOGETHER)}


def apply(connection: Connection, operations: Sequence[o.Operation]) -> None:
    for operation in operations:
        kind = type(operation)
        if kind in TOGETHER:
            TOGETHER[kind](connection, [operation])
        else:
            _APPLY[kind](connection, operation)


def _outbox_move(target: OutboxState, changes: str) -> str:
    return (
        f"UPDATE outbox SET state = '{target}', {changes} "  # noqa: S608 - constants only
        f"WHERE key = ? AND state IN ({listed(sources(OUTBOX_MOVES, target))})"
    )


_FORGIVE = f"UPDATE inbox SET attempts = 0 WHERE turn = ? AND state IN ({listed(INBOX_OPEN)})"  # noqa: S608 - constants only
_REPLACE = "UPDATE inbox SET inbound = ? WHERE turn = ? AND state = 'received'"
_SENDING = _outbox_move(OutboxState.SENDING, "sending_at = ?")
_BURY = _outbox_move(OutboxState.DEAD, "reason = ?")
_KEEP_DRAFT = "INSERT OR REPLACE INTO drafts (turn, receipt, at) VALUES (?, ?, ?)"
_DROP_DRAFT = "DELETE FROM drafts WHERE turn = ?"
_REMEMBER = "INSERT OR REPLACE INTO facts (name, value) VALUES (?, ?)"
_FORGET = "DELETE FROM facts WHERE name = ?"
_SPEND = """
    INSERT INTO usage (day, person, model, input_tokens, cached_tokens, output_tokens, cost_micros)
    VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (day, person, model) DO UPDATE SET
        input_tokens = input_tokens + excluded.input_tokens,
        cached_tokens = cached_tokens + excluded.cached_tokens,
        output_tokens = output_tokens + excluded.output_tokens,
        cost_micros = cost_micros + excluded.cost_micros
"""
# Both lead to pending, each from its own state: what is dead was not postponed, and what is being sent was not buried.
_POSTPONE = """
    UPDATE outbox SET state = 'pending', attempts = attempts + 1, reason = ? WHERE key = ? AND state = 'sending'
"""
_REVIVE = "UPDATE outbox SET state = 'pending', attempts = 0, reason = '' WHERE key = ? AND state = 'dead'"


def _forgive(connection: Connection, forgive: o.ResetAttempts) -> None:
    _insist(connection.execute(_FORGIVE, (forgive.turn,)), connection, "inbox", forgive.turn, "be forgiven")


def _replace(connection: Connection, replace: o.ReplaceInbound) -> None:
    replaced = connection.execute(_REPLACE, (encode(replace.inbound), replace.turn))
    _insist(replaced, connection, "inbox", replace.turn, "be replaced")


def _sending(connection: Connection, sending: o.MarkSending) -> None:
    moved = connection.execute(_SENDING, (to_micros(sending.at), sending.key))
    _insist(moved, connection, "outbox", sending.key, "be sent")


def _postpone(connection: Connection, postpone: o.RetryLater) -> None:
    moved = connection.execute(_POSTPONE, (postpone.reason, postpone.key))
    _insist(moved, connection, "outbox", postpone.key, "be postponed")


def _bury(connection: Connection, bury: o.MarkDead) -> None:
    _insist(connection.execute(_BURY, (bury.reason, bury.key)), connection, "outbox", bury.key, "be given up")


def _revive(connection: Connection, revive: o.RetryDead) -> None:
    _insist(connection.execute(_REVIVE, (revive.key,)), connection, "outbox", revive.key, "be tried again")


def _keep_draft(connection: Connection, keep: o.SaveDraft) -> None:
    connection.execute(_KEEP_DRAFT, (keep.turn, encode(keep.receipt), to_micros(keep.at)))


def _drop_draft(connection: Connection, drop: o.DeleteDraft) -> None:
    connection.execute(_DROP_DRAFT, (drop.turn,))


def _remember(connection: Connection, fact: o.SetFact) -> None:
    if fact.value is None:
        connection.execute(_FORGET, (fact.name,))
    else:
        connection.execute(_REMEMBER, (fact.name, fact.value))


def _spend(connection: Connection, spend: o.AddUsage) -> None:
    amounts = (spend.input_tokens, spend.cached_tokens, spend.output_tokens, spend.cost_micros)
    connection.execute(_SPEND, (spend.day, spend.person, spend.model, *amounts))


def _insist(cursor: sqlite3.Cursor, connection: Connection, table: str, key: str, what: str) -> None:
    """Raise `WrongState`, naming the state, when `cursor` has found no row that it may change."""
    if not cursor.rowcount:
        raise wrong_state(connection, table, key, what)


_APPLY: Mapping[type[o.Operation], Callable[[Connection, Any], None]] = {  # Any: each takes the type it stands behind.
    o.ResetAttempts: _forgive,
    o.ReplaceInbound: _replace,
    o.MarkSending: _sending,
    o.RetryLater: _postpone,
    o.MarkDead: _bury,
    o.RetryDead: _revive,
    o.SaveDraft: _keep_draft,
    o.DeleteDraft: _drop_draft,
    o.SetFact: _remember,
    o.AddUsage: _spend,
    o.AddReminder: reminders.appoint,
    o.RescheduleReminder: reminders.reschedule,
    o.CancelReminder: reminders.cancel,
}
