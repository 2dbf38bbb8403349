"""How each operation changes the tables. What is refused raises; whoever calls undoes what was done before that.

Those that every message makes stand in `together`.
"""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.spool import operations as o
from gateway.spool import reminding
from gateway.spool.rows import encode, to_micros
from gateway.spool.states import INBOX_OPEN, OUTBOX_MOVES, OutboxState, sources
from gateway.spool.together import TOGETHER, listed, wrong_state

__all__ = ["apply"]

Connection = sqlite3.Connection


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


def _forgive(connection: Connection, forgive: o.Forgive) -> None:
    _insist(connection.execute(_FORGIVE, (forgive.turn,)), connection, "inbox", forgive.turn, "be forgiven")


def _replace(connection: Connection, replace: o.Replace) -> None:
    replaced = connection.execute(_REPLACE, (encode(replace.inbound), replace.turn))
    _insist(replaced, connection, "inbox", replace.turn, "be replaced")


def _sending(connection: Connection, sending: o.Sending) -> None:
    moved = connection.execute(_SENDING, (to_micros(sending.at), sending.key))
    _insist(moved, connection, "outbox", sending.key, "be sent")


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


def _insist(cursor: sqlite3.Cursor, connection: Connection, table: str, key: str, what: str) -> None:
    """Raise `WrongState`, naming the state, when `cursor` has found no row that it may change."""
    if not cursor.rowcount:
        raise wrong_state(connection, table, key, what)


_APPLY: Mapping[type[o.Operation], Callable[[Connection, Any], None]] = {  # Any: each takes the type it stands behind.
    o.Forgive: _forgive,
    o.Replace: _replace,
    o.Sending: _sending,
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
