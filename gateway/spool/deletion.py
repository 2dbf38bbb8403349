"""Deletes the text of a session from the spool: from its rows at once, and from the rest of the file afterwards.

SQLite leaves copies of old rows in free pages, in the gaps of other pages and in the WAL. `purge` removes them. It
rewrites the whole file, so it runs once with the next flush and not with each commit. A row of the table `deletions`
says that a session has to be deleted, until `purge` is done: no crash can undo a deletion.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from gateway.contract import Inbound, Outbound
from gateway.database.connection import Connection
from gateway.spool.database import preallocate_wal
from gateway.spool.operations import Operation, quoted
from gateway.spool.rows import INBOX_OPEN, decode_inbound, decode_outbound, encode

SESSION_DELETED = "The session was deleted."
"""The note on messages that were waiting or running in a session when it was deleted."""
ERASED = "*This was deleted with its session.*"

_TURNS = "SELECT turn FROM inbox WHERE session = ?"
_UNDELIVERED = "state <> 'delivered' AND state IN ('pending', 'sending')"


class DropEntries(Operation, frozen=True, kw_only=True):
    """Drop all journaled entries of a session, which are durable elsewhere."""

    session: str

    def apply(self, connection: Connection) -> None:
        connection.execute("DELETE FROM notes WHERE session = ?", (self.session,))


GRANT_FACTS = "grants/"
"""The prefix of facts about tool calls that people have allowed for good."""


def grants_of_session(session: str) -> str:
    """Return the prefix of the facts about a session. An empty key is for those about a person."""
    return f"{GRANT_FACTS}{session}\t"  # No key contains a tab.


class DeleteSession(Operation, frozen=True, kw_only=True):
    """Record that a session is deleted, and erase its text from all rows but those of its transcript.

    Rows stay without their text where something refers to them: an edit finds its message, and a reply that is being
    sent still ends as delivered.
    """

    session: str
    scope: str

    def apply(self, connection: Connection) -> None:
        connection.execute(
            "INSERT INTO deletions (session, outbox_id, is_purged) "
            "VALUES (?, (SELECT coalesce(max(id), 0) FROM outbox), 0) "
            "ON CONFLICT (session) DO UPDATE SET outbox_id = excluded.outbox_id, is_purged = 0",
            (self.session,),
        )
        prefix = grants_of_session(self.session)
        connection.execute("DELETE FROM facts WHERE substr(name, 1, ?) = ?", (len(prefix), prefix))
        # The next run of a schedule that wrote into the session starts another one.
        rename_in_schedules(connection, self.session, "", scope=self.scope)
        connection.execute(
            f"UPDATE inbox SET note = ? WHERE session = ? AND state IN ({quoted(INBOX_OPEN)})",  # noqa: S608 - constants only
            (SESSION_DELETED, self.session),
        )
        chats = self._erase_messages(connection)
        self._erase_replies(connection, chats)

    def _erase_messages(self, connection: Connection) -> set[bytes]:
        """Erase the messages of the session, and all finished ones of its scope. Return the chats of the scope.

        Commands such as `/session search` may quote any session of the scope, so they are erased too.
        """
        found = connection.execute(
            "SELECT id, session = ? OR state IN ('answered', 'abandoned'), inbound FROM inbox WHERE scope = ?",
            (self.session, self.scope),
        )
        chats: set[bytes] = set()
        erased: list[tuple[bytes, int]] = []
        for row, is_erased, stored in found:
            inbound = _decoded(stored)
            if inbound is None:
                erased.append((b"{}", row))
                continue
            chats.add(encode(inbound.address))
            if is_erased:
                erased.append((encode(_without_text(inbound)), row))
        connection.executemany("UPDATE inbox SET inbound = ? WHERE id = ?", erased)
        return chats

    def _erase_replies(self, connection: Connection, chats: Collection[bytes]) -> None:
        """Erase the replies of the session. Delete dead ones, and dead notices in the chats of its scope."""
        turns = {turn for (turn,) in connection.execute(_TURNS, (self.session,))}
        erased: list[tuple[bytes, int]] = []
        deleted: list[tuple[int]] = []
        for row, turn, state, stored in connection.execute(
            "SELECT id, turn, state, message FROM outbox WHERE state <> 'delivered'"
        ):
            if turn is not None and turn not in turns:
                continue
            try:
                message = decode_outbound(stored)
            except msgspec.DecodeError:
                message = None
            if state == "dead":
                if turn is not None or message is None or encode(message.address) in chats:
                    deleted.append((row,))
            elif turn is not None and message is not None:
                erased.append((encode(without_text(message)), row))
        connection.executemany("UPDATE outbox SET message = ?, reason = '' WHERE id = ?", erased)
        connection.executemany("DELETE FROM outbox WHERE id = ?", deleted)


def rename_in_schedules(connection: Connection, session: str, to: str, *, scope: str) -> None:
    """Give a session another key in the schedules of its scope, and in the list of their runs. Empty: it is gone."""
    connection.execute("UPDATE schedules SET session = ? WHERE scope = ? AND session = ?", (to, scope, session))
    connection.execute(
        "UPDATE schedule_runs SET session = ? WHERE schedule IN (SELECT id FROM schedules WHERE scope = ?) "
        "AND session = ?",
        (to, scope, session),
    )


def without_text(message: Outbound) -> Outbound:
    """Return a reply of a deleted session as it may still be sent."""
    return replace(message, text=ERASED, buttons=(), file=None, is_question=False)


def _without_text(inbound: Inbound) -> Inbound:
    return Inbound(
        address=inbound.address,
        sender=replace(inbound.sender, name=""),
        event_id=inbound.event_id,
        text="",
        sent_at=inbound.sent_at,
        message_id=inbound.message_id,
        guild=inbound.guild,
        answer_address=inbound.answer_address,
    )


def deletions(connection: Connection) -> list[str]:
    """Return the keys of deleted sessions whose deletion is not finished."""
    return [session for (session,) in connection.execute("SELECT session FROM deletions")]


def undelivered_turns(session: str, connection: Connection) -> set[str]:
    """Return the turns of a session whose replies are not delivered yet."""
    found = connection.execute(
        f"SELECT DISTINCT turn FROM outbox WHERE {_UNDELIVERED} AND turn IN ({_TURNS})",  # noqa: S608 - constants only
        (session,),
    )
    return {turn for (turn,) in found}


def to_purge(sessions: Sequence[str], connection: Connection) -> list[str]:
    """Return those of the deleted `sessions` for which the file has to be purged now.

    A reply that waits to be sent keeps its text until then. So a session is purged a second time when all replies
    that were waiting at its deletion are sent or given up.
    """
    due = [session for session in sessions if not _is_waiting(session, connection)]
    for session in due:
        _delete_dead_notices(session, connection)
    return due


def _delete_dead_notices(session: str, connection: Connection) -> None:
    """Delete notices of the session's scope that were given up since its deletion: they may quote it."""
    found = connection.execute(
        "SELECT id, message FROM outbox WHERE state <> 'delivered' AND state = 'dead' AND turn IS NULL "
        "AND id <= (SELECT outbox_id FROM deletions WHERE session = ?)",
        (session,),
    ).fetchall()
    if not found:
        return
    scope = session.partition("#")[0]
    inbounds = connection.execute("SELECT inbound FROM inbox WHERE scope = ?", (scope,)).fetchall()
    chats = {encode(inbound.address) for (stored,) in inbounds if (inbound := _decoded(stored)) is not None}
    for row, stored in found:
        try:
            is_theirs = encode(decode_outbound(stored).address) in chats
        except msgspec.DecodeError:
            is_theirs = True
        if is_theirs:
            connection.execute("DELETE FROM outbox WHERE id = ?", (row,))


def _decoded(stored: bytes) -> Inbound | None:
    try:
        return decode_inbound(stored)
    except msgspec.DecodeError:
        return None


def _is_waiting(session: str, connection: Connection) -> bool:
    found = connection.execute("SELECT outbox_id, is_purged FROM deletions WHERE session = ?", (session,)).fetchone()
    return found is not None and bool(found[1]) and _has_undelivered(found[0], connection)


def _has_undelivered(upto: int, connection: Connection) -> bool:
    waiting = f"SELECT 1 FROM outbox WHERE {_UNDELIVERED} AND id <= ? LIMIT 1"  # noqa: S608 - constants only
    return connection.execute(waiting, (upto,)).fetchone() is not None


def purge(path: Path, connection: Connection) -> None:
    """Rewrite the file with its present rows only, and empty the WAL. Call it outside of a transaction."""
    # `secure_delete = FAST` does not erase free pages, nor rows that were moved to another page before they were
    # deleted. Only VACUUM removes all of them.
    connection.execute("VACUUM")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    preallocate_wal(path)


def end_deletions(sessions: Sequence[str], connection: Connection) -> list[str]:
    """Forget the deletions of sessions whose text is gone, after a purge, and return their keys."""
    ended: list[str] = []
    for session in sessions:
        found = connection.execute("SELECT outbox_id FROM deletions WHERE session = ?", (session,)).fetchone()
        if found is not None and _has_undelivered(found[0], connection):
            connection.execute("UPDATE deletions SET is_purged = 1 WHERE session = ?", (session,))
        else:
            connection.execute("DELETE FROM deletions WHERE session = ?", (session,))
            ended.append(session)
    return ended
