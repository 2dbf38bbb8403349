"""Operations: the changes that can be committed to the spool, such as to the inbox and the outbox.

`MarkSeen` refuses duplicates of messages (dedupe). `RetryLater` and `RetryDead` return a message to the outbox.
Operations about reminders are in `reminder_operations.py`.

Callers create operations on the event loop as plain values. The writer thread applies them inside a transaction.
"""

from collections.abc import Iterable
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from gateway.contract import Arrival, Inbound, Outbound, Receipt
from gateway.database.connection import Connection
from gateway.database.row_statement import RowStatement
from gateway.shards import shard_of
from gateway.spool.errors import ArrivalsWaiting, Conflict, Duplicate, WrongState
from gateway.spool.rows import (
    INBOX_MOVES,
    INBOX_OPEN,
    OUTBOX_MOVES,
    OUTBOX_OPEN,
    InboxState,
    OutboxState,
    encode,
    sources,
    to_micros,
)


class Operation(Struct, frozen=True, kw_only=True):
    """One change. Operations of one commit take effect in their order."""

    def apply(self, connection: Connection) -> None:
        """Run in the writer thread. Raises `CommitRefused` if the change is not allowed."""
        raise NotImplementedError


def quoted(states: Iterable[str]) -> str:
    """Return states as a list for SQL's IN. NULL, which equals nothing, is the empty list."""
    return ", ".join(f"'{state}'" for state in sorted(states)) or "NULL"


def _wrong_state(connection: Connection, table: str, key: str, action: str) -> WrongState:
    """Return the error for a statement that matched no row. It names the row's present state."""
    column = "turn" if table == "inbox" else "key"
    found = connection.execute(f"SELECT state FROM {table} WHERE {column} = ?", (key,)).fetchone()  # noqa: S608 - constants only
    return WrongState(f"{key} cannot {action}: it is {found[0] if found else 'unknown'}.")


_MARK_SEEN = RowStatement(
    "INSERT INTO seen (channel, account, event_id, at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
    ("text", "text", "text", "bigint"),
    table="seen",
    key=(0, 1, 2),
)


# The row of the position is locked, so no message can arrive between this statement and the commit.
_NEXT_POSITION = RowStatement(
    """
    UPDATE shard_position SET last = last + 1
    WHERE shard = ? AND NOT EXISTS (SELECT 1 FROM arrival WHERE arrival.shard = shard_position.shard AND scope = ?)
    """,
    ("bigint", "text"),
    table="shard_position",
    key=(0,),
)
_REMOVE_ARRIVAL = RowStatement(
    "DELETE FROM arrival WHERE shard = ? AND position = ?", ("bigint", "bigint"), table="arrival", key=(0, 1)
)


class MarkSeen(Operation, frozen=True, kw_only=True):
    """Record a platform's event, so that a repeat is recognised. Raises `Duplicate` for a repeat.

    In a cluster, the event of a message that another node has accepted is recorded already. Then this removes its
    `arrival`, once. A message that came in here takes the next position of its shard, and raises `ArrivalsWaiting` if
    others have to be accepted first.
    """

    channel: str
    account: str
    event_id: str
    at: datetime
    arrival: Arrival | None = None

    @classmethod
    def of(cls, inbound: Inbound, at: datetime) -> "MarkSeen":
        """Return the mark of the event that `inbound` came with."""
        address = inbound.address
        return cls(
            channel=address.channel,
            account=address.account,
            event_id=inbound.event_id,
            at=at,
            arrival=inbound.arrival,
        )

    def apply(self, connection: Connection) -> None:
        if self.arrival is not None:
            scope, position = self.arrival.scope, self.arrival.position
            shard = shard_of(scope)
            if position:
                if not connection.execute(_REMOVE_ARRIVAL, (shard, position)).rowcount:
                    raise Duplicate(f"The message {position} of shard {shard} was accepted before.")
                return
            if not connection.execute(_NEXT_POSITION, (shard, scope)).rowcount:
                raise ArrivalsWaiting(f"Earlier messages of {scope} have to be accepted first.")
        values = (self.channel, self.account, self.event_id, to_micros(self.at))
        inserted = connection.execute(_MARK_SEEN, values)
        if not inserted.rowcount:
            raise Duplicate(f"The event {self.event_id} of {self.channel}/{self.account} was seen before.")


_ADD_ARRIVAL = """
    WITH next AS (UPDATE shard_position SET last = last + 1 WHERE shard = ? RETURNING shard, last)
    INSERT INTO arrival (shard, position, scope, at, inbound) SELECT shard, last, ?, ?, ? FROM next
    RETURNING pg_notify('gatehouse', 'arrival ' || shard)
"""


class AddArrival(Operation, frozen=True, kw_only=True):
    """Accept a message at a node that does not own its scope, and wake the owner."""

    scope: str
    inbound: Inbound
    at: datetime

    def apply(self, connection: Connection) -> None:
        shard = shard_of(self.scope)
        values = (shard, self.scope, to_micros(self.at), encode(self.inbound))
        connection.execute(_ADD_ARRIVAL, values)


class DropArrival(Operation, frozen=True, kw_only=True):
    """End a message that another node has accepted and that needs no answer. Does nothing if it has ended already."""

    arrival: Arrival

    def apply(self, connection: Connection) -> None:
        values = (shard_of(self.arrival.scope), self.arrival.position)
        connection.execute("DELETE FROM arrival WHERE shard = ? AND position = ?", values)


class SetArrivalAside(Operation, frozen=True, kw_only=True):
    """Make a message that another node has accepted a dead one. It can never be answered, but is kept."""

    arrival: Arrival
    reason: str

    def apply(self, connection: Connection) -> None:
        place = (shard_of(self.arrival.scope), self.arrival.position)
        connection.execute(
            "INSERT INTO inbox (turn, state, scope, session, number, agent, accepted_at, note, inbound) "
            "SELECT 'arrival-' || shard || '-' || position, 'dead', scope, '', 0, '', at, ?, inbound "
            "FROM arrival WHERE shard = ? AND position = ?",
            (self.reason, *place),
        )
        connection.execute("DELETE FROM arrival WHERE shard = ? AND position = ?", place)


class ChangeShardLabels(Operation, frozen=True, kw_only=True):
    """Change which labels a node needs to own a shard, and wake the other nodes. Only its owner does that."""

    shard: int
    add: frozenset[str] = frozenset()
    remove: frozenset[str] = frozenset()

    def apply(self, connection: Connection) -> None:
        (stored,) = connection.execute("SELECT labels FROM shard WHERE number = ?", (self.shard,)).fetchone()
        labels = (self.add | set(stored.split())) - self.remove
        connection.execute("UPDATE shard SET labels = ? WHERE number = ?", (" ".join(sorted(labels)), self.shard))
        connection.execute("SELECT pg_notify('gatehouse', 'nodes')")


_ADD_TO_INBOX = RowStatement(
    """
    INSERT INTO inbox (turn, state, attempts, scope, session, number, agent, accepted_at, event_id, inbound)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
    """,
    ("text", "text", "bigint", "text", "text", "bigint", "text", "bigint", "text", "bytea"),
    table="inbox",
    key=(0,),
)


class AddToInbox(Operation, frozen=True, kw_only=True):
    """Accept a message. Raises `Duplicate` if the turn exists.

    `is_started` makes a separate `StartTurn` unnecessary if the turn starts at once.
    """

    turn: str
    inbound: Inbound
    scope: str
    session: str
    number: int
    agent: str
    at: datetime
    is_started: bool = False

    def apply(self, connection: Connection) -> None:
        inserted = connection.execute(
            _ADD_TO_INBOX,
            (
                self.turn,
                InboxState.RUNNING if self.is_started else InboxState.RECEIVED,
                int(self.is_started),
                self.scope,
                self.session,
                self.number,
                self.agent,
                to_micros(self.at),
                self.inbound.event_id,
                encode(self.inbound if self.inbound.arrival is None else replace(self.inbound, arrival=None)),
            ),
        )
        if not inserted.rowcount:
            raise Duplicate(f"The turn {self.turn} was accepted before.")


# Every UPDATE names the states from which the row may move. A row in another state does not match, so a race between
# two callers (a stop and an answer, for example) ends with `WrongState` for the second one.
_START_TURN = RowStatement(
    "UPDATE inbox SET state = 'running', attempts = attempts + 1 "  # noqa: S608 - constants only
    f"WHERE turn = ? AND state IN ({quoted(sources(INBOX_MOVES, InboxState.RUNNING))})",
    ("text",),
    table="inbox",
    key=(0,),
)


class StartTurn(Operation, frozen=True, kw_only=True):
    """Start a turn, or resume it after a crash. Each start counts as an attempt."""

    turn: str

    def apply(self, connection: Connection) -> None:
        started = connection.execute(_START_TURN, (self.turn,))
        if not started.rowcount:
            raise _wrong_state(connection, "inbox", self.turn, "start")


_RESET_ATTEMPTS = f"UPDATE inbox SET attempts = 0 WHERE turn = ? AND state IN ({quoted(INBOX_OPEN)})"  # noqa: S608 - constants only


class ResetAttempts(Operation, frozen=True, kw_only=True):
    """Set the attempts of an unfinished turn to 0, because the turn did not cause the daemon to end."""

    turn: str

    def apply(self, connection: Connection) -> None:
        reset = connection.execute(_RESET_ATTEMPTS, (self.turn,))
        if not reset.rowcount:
            raise _wrong_state(connection, "inbox", self.turn, "have its attempts reset")


_SET_INBOX_STATE = {
    state: RowStatement(
        f"UPDATE inbox SET state = '{state}', answered_by = ?, note = ? "  # noqa: S608 - constants only
        f"WHERE turn = ? AND state IN ({quoted(sources(INBOX_MOVES, state))})",
        ("text", "text", "text"),
        table="inbox",
        key=(2,),
    )
    for state in InboxState
}


class SetInboxState(Operation, frozen=True, kw_only=True):
    """Move a message to another state. `answered_by` names the turn that answered it, if that is a different turn."""

    turn: str
    state: InboxState
    answered_by: str | None = None
    note: str = ""

    def apply(self, connection: Connection) -> None:
        moved = connection.execute(_SET_INBOX_STATE[self.state], (self.answered_by, self.note, self.turn))
        if not moved.rowcount:
            raise _wrong_state(connection, "inbox", self.turn, f"become {self.state}")


class DropDeadMessage(Operation, frozen=True, kw_only=True):
    """Let a message that was set aside be. Its sender has been told that it was not answered."""

    turn: str

    def apply(self, connection: Connection) -> None:
        dropped = connection.execute(
            "UPDATE inbox SET state = 'abandoned' WHERE turn = ? AND state = 'dead'", (self.turn,)
        )
        if not dropped.rowcount:
            raise _wrong_state(connection, "inbox", self.turn, "be dropped")


class ReplaceInbound(Operation, frozen=True, kw_only=True):
    """Store the edited text of a message whose turn has not started. Raises `WrongState` after the start."""

    turn: str
    inbound: Inbound

    def apply(self, connection: Connection) -> None:
        replaced = connection.execute(
            "UPDATE inbox SET inbound = ? WHERE turn = ? AND state = 'received'", (encode(self.inbound), self.turn)
        )
        if not replaced.rowcount:
            raise _wrong_state(connection, "inbox", self.turn, "be replaced")


class AppendEntries(Operation, frozen=True, kw_only=True):
    """Journal the entries of a transcript. Repeating the same bytes does nothing.

    Raises `Conflict` if an entry with the same seq has different bytes.
    """

    session: str
    first_seq: int
    lines: tuple[bytes, ...]

    def apply(self, connection: Connection) -> None:
        rows = [(self.session, seq, line) for seq, line in enumerate(self.lines, self.first_seq)]
        insert = "INSERT INTO notes (session, seq, line) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
        if connection.executemany(insert, rows).rowcount == len(rows):
            return
        # Some entries exist. A crash between the journal and the flush makes callers append the same bytes again.
        for session, seq, line in rows:
            stored = "SELECT line FROM notes WHERE session = ? AND seq = ?"
            if connection.execute(stored, (session, seq)).fetchone() != (line,):
                raise Conflict(f"Entry {seq} of {session} was journaled before with different content.")


_ADD_TO_OUTBOX = RowStatement(
    "INSERT INTO outbox (key, turn, state, created_at, sending_at, message) "
    "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
    ("text", "text", "text", "bigint", "bigint", "bytea"),
    table="outbox",
    key=(0,),
)


REVIVED = -1
"""The attempts of a part that a person has revived, and that its owner in the cluster has not noticed yet."""

_ADD_TO_OUTBOX_OF_SCOPE = RowStatement(
    "INSERT INTO outbox (key, turn, state, created_at, sending_at, message, scope) "
    "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
    ("text", "text", "text", "bigint", "bigint", "bytea", "text"),
    table="outbox",
    key=(0,),
)


class AddToOutbox(Operation, frozen=True, kw_only=True):
    """Queue one part of a reply behind all others. Raises `Duplicate` if the key exists.

    `is_sending` makes a separate `MarkSending` unnecessary if the part is sent at once. In a cluster, the owner of
    `scope` sends it.
    """

    key: str
    turn: str | None
    message: Outbound
    at: datetime
    is_sending: bool = False
    scope: str = ""

    def apply(self, connection: Connection) -> None:
        at = to_micros(self.at)
        state, sending_at = (OutboxState.SENDING, at) if self.is_sending else (OutboxState.PENDING, None)
        values = (self.key, self.turn, state, at, sending_at, encode(self.message))
        if self.scope:
            inserted = connection.execute(_ADD_TO_OUTBOX_OF_SCOPE, (*values, self.scope))
        else:
            inserted = connection.execute(_ADD_TO_OUTBOX, values)
        if not inserted.rowcount:
            raise Duplicate(f"The reply {self.key} was queued before.")


_MARK_SENDING = RowStatement(
    "UPDATE outbox SET state = 'sending', sending_at = ? "  # noqa: S608 - constants only
    f"WHERE key = ? AND state IN ({quoted(sources(OUTBOX_MOVES, OutboxState.SENDING))})",
    ("bigint", "text"),
    table="outbox",
    key=(1,),
)


class MarkSending(Operation, frozen=True, kw_only=True):
    """Record that a send starts. A crash during the send leaves the row in this state."""

    key: str
    at: datetime

    def apply(self, connection: Connection) -> None:
        moved = connection.execute(_MARK_SENDING, (to_micros(self.at), self.key))
        if not moved.rowcount:
            raise _wrong_state(connection, "outbox", self.key, "be sent")


_MARK_DELIVERED = RowStatement(
    "UPDATE outbox SET state = 'delivered', receipt = ?, delivered_at = ?, reason = '', message = '{}' "  # noqa: S608 - constants only
    f"WHERE key = ? AND state IN ({quoted(sources(OUTBOX_MOVES, OutboxState.DELIVERED))})",
    ("bytea", "bigint", "text"),
    table="outbox",
    key=(2,),
)


class MarkDelivered(Operation, frozen=True, kw_only=True):
    """Record that a part has arrived. Its text is not kept."""

    key: str
    receipt: Receipt
    at: datetime

    def apply(self, connection: Connection) -> None:
        moved = connection.execute(_MARK_DELIVERED, (encode(self.receipt), to_micros(self.at), self.key))
        if not moved.rowcount:
            raise _wrong_state(connection, "outbox", self.key, "become delivered")


class RetryLater(Operation, frozen=True, kw_only=True):
    """Queue a part again after its send has failed for certain."""

    key: str
    reason: str

    def apply(self, connection: Connection) -> None:
        moved = connection.execute(
            "UPDATE outbox SET state = 'pending', attempts = attempts + 1, reason = ? "
            "WHERE key = ? AND state = 'sending'",
            (self.reason, self.key),
        )
        if not moved.rowcount:
            raise _wrong_state(connection, "outbox", self.key, "be postponed")


_MARK_DEAD = (
    "UPDATE outbox SET state = 'dead', reason = ? "  # noqa: S608 - constants only
    f"WHERE key = ? AND state IN ({quoted(sources(OUTBOX_MOVES, OutboxState.DEAD))})"
)


class MarkDead(Operation, frozen=True, kw_only=True):
    """Give up on a part."""

    key: str
    reason: str

    def apply(self, connection: Connection) -> None:
        moved = connection.execute(_MARK_DEAD, (self.reason, self.key))
        if not moved.rowcount:
            raise _wrong_state(connection, "outbox", self.key, "be given up")


_WITHDRAW = f"DELETE FROM outbox WHERE key = ? AND state IN ({quoted(OUTBOX_OPEN)})"  # noqa: S608 - constants only


class WithdrawMessage(Operation, frozen=True, kw_only=True):
    """Delete a part that must not be sent any more, because its recipient has lost access."""

    key: str

    def apply(self, connection: Connection) -> None:
        withdrawn = connection.execute(_WITHDRAW, (self.key,))
        if not withdrawn.rowcount:
            raise _wrong_state(connection, "outbox", self.key, "be withdrawn")


class RetryDead(Operation, frozen=True, kw_only=True):
    """Queue a dead part again, as `gatehouse spool retry` does.

    With `at_owner`, the node of a cluster that owns its scope sends it: see `Spool.take_revived`.
    """

    key: str
    at_owner: bool = False

    def apply(self, connection: Connection) -> None:
        moved = connection.execute(
            "UPDATE outbox SET state = 'pending', attempts = ?, reason = '' WHERE key = ? AND state = 'dead'",
            (REVIVED if self.at_owner else 0, self.key),
        )
        if not moved.rowcount:
            raise _wrong_state(connection, "outbox", self.key, "be retried")
        if self.at_owner:
            WakeNodes().apply(connection)


class DropDeadReply(Operation, frozen=True, kw_only=True):
    """Delete a part of a reply that was given up."""

    key: str

    def apply(self, connection: Connection) -> None:
        dropped = connection.execute("DELETE FROM outbox WHERE key = ? AND state = 'dead'", (self.key,))
        if not dropped.rowcount:
            raise _wrong_state(connection, "outbox", self.key, "be dropped")


_SAVE_DRAFT = RowStatement(
    "INSERT INTO drafts (turn, receipt, at) VALUES (?, ?, ?) "
    "ON CONFLICT (turn) DO UPDATE SET receipt = excluded.receipt, at = excluded.at",
    ("text", "bytea", "bigint"),
    table="drafts",
    key=(0,),
)


class SaveDraft(Operation, frozen=True, kw_only=True):
    """Store the platform's id of a draft message, in place of an earlier one.

    `receipt` is None just before the draft is sent. If a crash leaves it so, the draft may be in the chat under an
    unknown id.
    """

    turn: str
    receipt: Receipt | None
    at: datetime

    def apply(self, connection: Connection) -> None:
        connection.execute(_SAVE_DRAFT, (self.turn, encode(self.receipt), to_micros(self.at)))


_DELETE_DRAFT = RowStatement("DELETE FROM drafts WHERE turn = ?", ("text",), table="drafts", key=(0,))


class DeleteDraft(Operation, frozen=True, kw_only=True):
    turn: str

    def apply(self, connection: Connection) -> None:
        connection.execute(_DELETE_DRAFT, (self.turn,))


_SET_FACT = RowStatement(
    "INSERT INTO facts (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
    ("text", "text"),
    table="facts",
    key=(0,),
)
_DELETE_FACT = RowStatement("DELETE FROM facts WHERE name = ?", ("text",), table="facts", key=(0,))


class SetFact(Operation, frozen=True, kw_only=True):
    """Store a short text under a name. None deletes it."""

    name: str
    value: str | None

    def apply(self, connection: Connection) -> None:
        if self.value is None:
            connection.execute(_DELETE_FACT, (self.name,))
        else:
            connection.execute(_SET_FACT, (self.name, self.value))


class ReplaceFact(Operation, frozen=True, kw_only=True):
    """Change a fact, or delete it with the new value None, if it still has the `old` value. Otherwise do nothing."""

    name: str
    old: str
    value: str | None

    def apply(self, connection: Connection) -> None:
        if self.value is None:
            connection.execute("DELETE FROM facts WHERE name = ? AND value = ?", (self.name, self.old))
        else:
            connection.execute(
                "UPDATE facts SET value = ? WHERE name = ? AND value = ?", (self.value, self.name, self.old)
            )


class TakeFact(Operation, frozen=True, kw_only=True):
    """Delete a fact. Raises `WrongState` if there is none: another node of the cluster has been faster."""

    name: str

    def apply(self, connection: Connection) -> None:
        if not connection.execute(_DELETE_FACT, (self.name,)).rowcount:
            raise WrongState(f"The fact {self.name} is gone.")


class WakeNodes(Operation, frozen=True, kw_only=True):
    """Let all nodes of a cluster look for changes at once. Without it, they do so within a second."""

    def apply(self, connection: Connection) -> None:
        connection.execute("SELECT pg_notify('gatehouse', 'nodes')")


_ADD_USAGE = RowStatement(
    """
    INSERT INTO usage (day, person, model, input_tokens, cached_tokens, output_tokens, cost_micros)
    VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (day, person, model) DO UPDATE SET
        input_tokens = usage.input_tokens + excluded.input_tokens,
        cached_tokens = usage.cached_tokens + excluded.cached_tokens,
        output_tokens = usage.output_tokens + excluded.output_tokens,
        cost_micros = usage.cost_micros + excluded.cost_micros
    """,
    ("text", "text", "text", "bigint", "bigint", "bigint", "bigint"),
    table="usage",
    key=(0, 1, 2),
)


_ADD_AGENT_USAGE = RowStatement(
    """
    INSERT INTO agent_usage (day, person, model, agent, input_tokens, cached_tokens, output_tokens, cost_micros)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (day, person, model, agent) DO UPDATE SET
        input_tokens = agent_usage.input_tokens + excluded.input_tokens,
        cached_tokens = agent_usage.cached_tokens + excluded.cached_tokens,
        output_tokens = agent_usage.output_tokens + excluded.output_tokens,
        cost_micros = agent_usage.cost_micros + excluded.cost_micros
    """,
    ("text", "text", "text", "text", "bigint", "bigint", "bigint", "bigint"),
    table="agent_usage",
    key=(0, 1, 2, 3),
)


class AddUsage(Operation, frozen=True, kw_only=True):
    """Add to a person's usage of a model on a day (UTC, YYYY-MM-DD). The input tokens include `cached_tokens`."""

    day: str
    person: str
    model: str
    agent: str = ""
    """The agent that has asked the model, if it is known."""
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_micros: int = 0

    def apply(self, connection: Connection) -> None:
        amounts = (self.input_tokens, self.cached_tokens, self.output_tokens, self.cost_micros)
        connection.execute(_ADD_USAGE, (self.day, self.person, self.model, *amounts))
        # After the row of `usage`, which nodes of a cluster lock in one order: so they never deadlock about this one.
        if self.agent:
            connection.execute(_ADD_AGENT_USAGE, (self.day, self.person, self.model, self.agent, *amounts))
