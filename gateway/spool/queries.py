"""What is read from the tables, all of it in the writer's thread and in order with the commits."""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gateway.contract import Address, Receipt
from gateway.spool.apply import listed
from gateway.spool.database import LOG_LENGTH, log_of
from gateway.spool.operations import MarkSeen
from gateway.spool.rows import (
    INBOX_OPEN,
    OUTBOX_OPEN,
    InboxRow,
    InboxState,
    OutboxRow,
    OutboxState,
    RecoveredWork,
    SpoolListing,
    Stats,
    UsageTotal,
    draft_of,
    from_micros,
    inbound_of,
    outbound_of,
    receipt_of,
    to_micros,
)

__all__ = ["accepted", "facts", "forget", "listing", "noted", "recover", "spenders", "spent", "stats", "was_taken"]

Connection = sqlite3.Connection
Columns = tuple[Any, ...]  # Any: SQLite gives what was stored.

_INBOX = """
    SELECT turn, state, scope, session, number, agent, accepted_at, attempts, answered_by, note, inbound FROM inbox
"""
_OUTBOX = "SELECT key, turn, state, created_at, sending_at, attempts, reason, message FROM outbox"

# The conditions name the partial indexes, so that SQLite uses them.
_INBOX_OPEN = f"WHERE state NOT IN ('answered', 'abandoned') AND state IN ({listed(INBOX_OPEN)}) ORDER BY id"
_OUTBOX_OPEN = f"WHERE state <> 'delivered' AND state IN ({listed(OUTBOX_OPEN)}) ORDER BY id"
_INBOX_LISTED = "WHERE state NOT IN ('answered', 'abandoned') AND state = 'dead' ORDER BY id LIMIT ?"
_INBOX_OF_EVENT = "WHERE event_id = ? AND event_id <> '' ORDER BY id"
_OUTBOX_LISTED = "WHERE state <> 'delivered' ORDER BY id LIMIT ?"

_RECEIPTS = "SELECT receipt FROM outbox WHERE state = 'delivered' AND delivered_at >= ?"
_FACTS = "SELECT name, value FROM facts"
_SEEN = "SELECT 1 FROM seen WHERE channel = ? AND account = ? AND event_id = ?"
_NOTED = "SELECT seq, line FROM notes WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?"
_NEXT_SESSION = "SELECT session FROM notes WHERE session > ? ORDER BY session LIMIT 1"
_FORGET = """
    DELETE FROM notes WHERE session = :session AND seq IN (
        SELECT seq FROM notes WHERE session = :session AND seq <= :upto ORDER BY seq LIMIT :limit
    )
"""

_SUMS = """
    coalesce(sum(input_tokens), 0), coalesce(sum(cached_tokens), 0), coalesce(sum(output_tokens), 0),
    coalesce(sum(cost_micros), 0)
"""
_SPENT = f"SELECT {_SUMS} FROM usage WHERE day = ? AND (? IS NULL OR person = ?)"  # noqa: S608 - constants only
_SPENDERS = f"""
    SELECT person, {_SUMS} FROM usage WHERE day = ? GROUP BY person
    ORDER BY sum(input_tokens + output_tokens) DESC, person LIMIT ?
"""  # noqa: S608 - constants only

_Row = TypeVar("_Row", InboxRow, OutboxRow)


def recover(connection: Connection) -> RecoveredWork:
    """Return all that is unfinished. Rows that cannot be read are set to dead on the way, and kept as they are."""
    inbox, lost_turns = _readable(_inbox_row, connection.execute(f"{_INBOX} {_INBOX_OPEN}"))
    outbox, lost_keys = _readable(_outbox_row, connection.execute(f"{_OUTBOX} {_OUTBOX_OPEN}"))
    why = "This version of Gatehouse cannot read it."
    connection.executemany("UPDATE inbox SET state = 'dead', note = ? WHERE turn = ?", [(why, t) for t in lost_turns])
    connection.executemany("UPDATE outbox SET state = 'dead', reason = ? WHERE key = ?", [(why, k) for k in lost_keys])
    return RecoveredWork(
        inbox=tuple(inbox),
        outbox=tuple(outbox),
        drafts=_drafts(connection),
        facts=facts(connection, ""),
        unreadable=(*lost_turns, *lost_keys),
    )


def receipts(connection: Connection, since: datetime) -> set[str]:
    found = connection.execute(_RECEIPTS, (to_micros(since),))
    return {receipt_of(receipt).message_id for (receipt,) in found if receipt is not None}


def facts(connection: Connection, prefix: str) -> dict[str, str]:
    return {name: value for name, value in connection.execute(_FACTS) if name.startswith(prefix)}


def accepted(connection: Connection, address: Address, event_id: str) -> InboxRow | None:
    """Find a message by its event id, whatever has become of it; None when it is not known any more."""
    rows, _ = _readable(_inbox_row, connection.execute(f"{_INBOX} {_INBOX_OF_EVENT}", (event_id,)))
    where = (address.channel, address.account, address.peer)
    found = [
        row
        for row in rows
        if (row.inbound.address.channel, row.inbound.address.account, row.inbound.address.peer) == where
    ]
    return found[-1] if found else None


def was_taken(connection: Connection, event: MarkSeen) -> bool:
    found = connection.execute(_SEEN, (event.channel, event.account, event.event_id))
    return found.fetchone() is not None


def listing(connection: Connection, limit: int) -> SpoolListing:
    """Return what was set aside and what has not been delivered, oldest first."""
    inbox, lost_turns = _readable(_inbox_row, connection.execute(f"{_INBOX} {_INBOX_LISTED}", (limit,)))
    outbox, lost_keys = _readable(_outbox_row, connection.execute(f"{_OUTBOX} {_OUTBOX_LISTED}", (limit,)))
    return SpoolListing(inbox=tuple(inbox), outbox=tuple(outbox), unreadable=(*lost_turns, *lost_keys))


def noted(connection: Connection, session: str, after: int, limit: int) -> tuple[str, list[tuple[int, bytes]]] | None:
    """Return the next noted entries behind that of `session` with seq `after`: its own, or the next session's."""
    lines = connection.execute(_NOTED, (session, after, limit)).fetchall()
    if lines:
        return session, lines
    following = connection.execute(_NEXT_SESSION, (session,)).fetchone()
    return None if following is None else noted(connection, following[0], -1, limit)


def forget(connection: Connection, upto: Sequence[tuple[str, int]], limit: int) -> int:
    """Drop at most `limit` entries of the given sessions up to the given seqs; return how many sessions are done."""
    for done, (session, seq) in enumerate(upto):
        limit -= connection.execute(_FORGET, {"session": session, "upto": seq, "limit": limit}).rowcount
        if limit <= 0:
            return done
    return len(upto)


def spent(connection: Connection, day: str, person: str | None) -> UsageTotal:
    """Return what a person has used on a day; without one, what all have."""
    return _spent(connection.execute(_SPENT, (day, person, person)).fetchone())


def spenders(connection: Connection, day: str, limit: int) -> list[tuple[str, UsageTotal]]:
    """Return who has used most on a day, and how much."""
    return [(person, _spent(sums)) for person, *sums in connection.execute(_SPENDERS, (day, limit))]


def _spent(sums: Sequence[int]) -> UsageTotal:
    read, cached, written, cost = sums
    return UsageTotal(input_tokens=read, cached_tokens=cached, output_tokens=written, cost_micros=cost)


def stats(connection: Connection, path: Path) -> Stats:
    inbox = connection.execute(
        "SELECT state, count(*) FROM inbox WHERE state NOT IN ('answered', 'abandoned') GROUP BY state"
    )
    outbox = connection.execute("SELECT state, count(*) FROM outbox WHERE state <> 'delivered' GROUP BY state")
    # The oldest go first, so there are no gaps.
    (seen,) = connection.execute("SELECT coalesce(max(id) - min(id) + 1, 0) FROM seen").fetchone()
    return Stats(
        inbox={InboxState(state): count for state, count in inbox},
        outbox={OutboxState(state): count for state, count in outbox},
        seen=seen,
        file_bytes=_size(connection, path),
    )


def _size(connection: Connection, path: Path) -> int:
    """Return what the file holds, or will once its log is in it, and how far the log has outgrown its room."""
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (page,) = connection.execute("PRAGMA page_size").fetchone()
    log = log_of(path)
    outgrown = log.stat().st_size - LOG_LENGTH if log.exists() else 0
    return int(pages * page) + max(0, outgrown)


def _readable(read: Callable[[Columns], _Row], rows: Iterable[Columns]) -> tuple[list[_Row], list[str]]:
    """Return the rows that can be read, and the names of the others."""
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
        inbound=inbound_of(inbound),
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
    key, turn, state, created_at, sending_at, attempts, reason, message = row
    return OutboxRow(
        key=key,
        turn=turn,
        state=OutboxState(state),
        message=outbound_of(message),
        created_at=from_micros(created_at),
        sending_at=None if sending_at is None else from_micros(sending_at),
        attempts=attempts,
        reason=reason,
    )


def _drafts(connection: Connection) -> dict[str, Receipt | None]:
    drafts: dict[str, Receipt | None] = {}
    for turn, receipt in connection.execute("SELECT turn, receipt FROM drafts"):
        try:
            drafts[turn] = draft_of(receipt)
        except msgspec.DecodeError:
            drafts[turn] = None  # A draft that cannot be named cannot be edited either; its answer is sent anew.
    return drafts
