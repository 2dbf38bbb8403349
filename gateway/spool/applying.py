"""How each operation changes the tables. What is refused raises; whoever calls undoes what was done before that."""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.spool import operations as o
from gateway.spool import reminding
from gateway.spool.errors import Conflict, Duplicate, WrongState
from gateway.spool.rows import encode, to_micros
from gateway.spool.states import INBOX_MOVES, INBOX_OPEN, OUTBOX_MOVES, InboxState, OutboxState, sources

__all__ = ["apply", "listed"]

Connection = sqlite3.Connection


def apply(connection: Connection, operations: Sequence[o.Operation]) -> None:
    for operation in operations:
        _APPLY[type(operation)](connection, operation)


def listed(states: Sequence[str] | frozenset[str]) -> str:
    """Return states as SQL has them behind IN."""
    return ", ".join(f"'{state}'" for state in sorted(states))


def _inbox_move(target: InboxState, changes: str) -> str:
    return f"UPDATE inbox SET {changes} WHERE turn = ? AND state IN ({listed(sources(INBOX_MOVES, target))})"  # noqa: S608 - constants only


def _outbox_move(target: OutboxState, changes: str) -> str:
    return (
        f"UPDATE outbox SET state = '{target}', {changes} "  # noqa: S608 - constants only
        f"WHERE key = ? AND state IN ({listed(sources(OUTBOX_MOVES, target))})"
    )


_TAKE = "INSERT OR IGNORE INTO seen (channel, account, event_id, at) VALUES (?, ?, ?, ?)"
_ACCEPT = """
    INSERT OR IGNORE INTO inbox (turn, state, attempts, scope, session, number, agent, accepted_at, event_id, inbound)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_BEGIN = _inbox_move(InboxState.RUNNING, "state = 'running', attempts = attempts + 1")
_FORGIVE = f"UPDATE inbox SET attempts = 0 WHERE turn = ? AND state IN ({listed(INBOX_OPEN)})"  # noqa: S608 - constants only
_SETTLE = {state: _inbox_move(state, f"state = '{state}', answered_by = ?, note = ?") for state in InboxState}
_REPLACE = "UPDATE inbox SET inbound = ? WHERE turn = ? AND state = 'received'"
_NOTE = "INSERT OR IGNORE INTO notes (session, seq, line) VALUES (?, ?, ?)"
_NOTED = "SELECT line FROM notes WHERE session = ? AND seq = ?"
_SEND = """
    INSERT OR IGNORE INTO outbox (key, turn, state, created_at, sending_at, message) VALUES (?, ?, ?, ?, ?, ?)
"""
_SENDING = _outbox_move(OutboxState.SENDING, "sending_at = ?")
_DELIVERED = _outbox_move(OutboxState.DELIVERED, "receipt = ?, delivered_at = ?, reason = ''")
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


def _take(connection: Connection, take: o.Take) -> None:
    values = (take.channel, take.account, take.event_id, to_micros(take.at))
    if not connection.execute(_TAKE, values).rowcount:
        raise Duplicate(f"The event {take.event_id} of {take.channel}/{take.account} was taken before.")


def _accept(connection: Connection, accept: o.Accept) -> None:
    values = (
        accept.turn,
        InboxState.RUNNING if accept.is_begun else InboxState.RECEIVED,
        int(accept.is_begun),
        accept.scope,
        accept.session,
        accept.number,
        accept.agent,
        to_micros(accept.at),
        accept.inbound.event_id,
        encode(accept.inbound),
    )
    if not connection.execute(_ACCEPT, values).rowcount:
        raise Duplicate(f"The turn {accept.turn} was accepted before.")


def _begin(connection: Connection, begin: o.Begin) -> None:
    _insist(connection.execute(_BEGIN, (begin.turn,)), connection, "inbox", begin.turn, "be begun")


def _forgive(connection: Connection, forgive: o.Forgive) -> None:
    _insist(connection.execute(_FORGIVE, (forgive.turn,)), connection, "inbox", forgive.turn, "be forgiven")


def _settle(connection: Connection, settle: o.Settle) -> None:
    moved = connection.execute(_SETTLE[settle.state], (settle.answered_by, settle.note, settle.turn))
    _insist(moved, connection, "inbox", settle.turn, f"become {settle.state}")


def _replace(connection: Connection, replace: o.Replace) -> None:
    replaced = connection.execute(_REPLACE, (encode(replace.inbound), replace.turn))
    _insist(replaced, connection, "inbox", replace.turn, "be replaced")


def _note(connection: Connection, note: o.Note) -> None:
    rows = [(note.session, seq, line) for seq, line in enumerate(note.lines, note.first_seq)]
    if connection.executemany(_NOTE, rows).rowcount == len(rows):
        return
    for session, seq, line in rows:
        if connection.execute(_NOTED, (session, seq)).fetchone() != (line,):
            raise Conflict(f"Entry {seq} of {session} was noted before, and said something else.")


def _send(connection: Connection, send: o.Send) -> None:
    at = to_micros(send.at)
    state, sending_at = (OutboxState.SENDING, at) if send.is_sent_at_once else (OutboxState.PENDING, None)
    values = (send.key, send.turn, state, at, sending_at, encode(send.message))
    if not connection.execute(_SEND, values).rowcount:
        raise Duplicate(f"The reply {send.key} was put into the outbox before.")


def _sending(connection: Connection, sending: o.Sending) -> None:
    moved = connection.execute(_SENDING, (to_micros(sending.at), sending.key))
    _insist(moved, connection, "outbox", sending.key, "be sent")


def _delivered(connection: Connection, delivered: o.Delivered) -> None:
    values = (encode(delivered.receipt), to_micros(delivered.at), delivered.key)
    _insist(connection.execute(_DELIVERED, values), connection, "outbox", delivered.key, "become delivered")


def _postpone(connection: Connection, postpone: o.Postpone) -> None:
    moved = connection.execute(_POSTPONE, (postpone.reason, postpone.key))
    _insist(moved, connection, "outbox", postpone.key, "be postponed")


def _bury(connection: Connection, bury: o.Bury) -> None:
    _insist(connection.execute(_BURY, (bury.reason, bury.key)), connection, "outbox", bury.key, "be given up")


def _revive(connection: Connection, revive: o.Revive) -> None:
    _insist(connection.execute(_REVIVE, (revive.key,)), connection, "outbox", revive.key, "be tried again")


def _keep_draft(connection: Connection, keep: o.KeepDraft) -> None:
    connection.execute(_KEEP_DRAFT, (keep.turn, encode(keep.receipt), to_micros(keep.at)))


def _drop_draft(connection: Connection, drop: o.DropDraft) -> None:
    connection.execute(_DROP_DRAFT, (drop.turn,))


def _remember(connection: Connection, fact: o.Remember) -> None:
    if fact.value is None:
        connection.execute(_FORGET, (fact.name,))
    else:
        connection.execute(_REMEMBER, (fact.name, fact.value))


def _spend(connection: Connection, spend: o.Spend) -> None:
    amounts = (spend.input_tokens, spend.cached_tokens, spend.output_tokens, spend.cost_micros)
    connection.execute(_SPEND, (spend.day, spend.person, spend.model, *amounts))


_KEYS = {"inbox": "turn", "outbox": "key"}


def _insist(cursor: sqlite3.Cursor, connection: Connection, table: str, key: str, what: str) -> None:
    """Raise `WrongState`, naming the state, when `cursor` has found no row that it may change."""
    if cursor.rowcount:
        return
    found = connection.execute(f"SELECT state FROM {table} WHERE {_KEYS[table]} = ?", (key,)).fetchone()  # noqa: S608 - constants only
    raise WrongState(f"{key} cannot {what}: it is {found[0] if found else 'not there'}.")


_APPLY: Mapping[type[o.Operation], Callable[[Connection, Any], None]] = {  # Any: each takes the type it stands behind.
    o.Take: _take,
    o.Accept: _accept,
    o.Begin: _begin,
    o.Forgive: _forgive,
    o.Settle: _settle,
    o.Replace: _replace,
    o.Note: _note,
    o.Send: _send,
    o.Sending: _sending,
    o.Delivered: _delivered,
    o.Postpone: _postpone,
    o.Bury: _bury,
    o.Revive: _revive,
    o.KeepDraft: _keep_draft,
    o.DropDraft: _drop_draft,
    o.Remember: _remember,
    o.Spend: _spend,
    o.Appoint: reminding.appoint,
    o.Reschedule: reminding.reschedule,
    o.Cancel: reminding.cancel,
}
