"""Operations that bind rows of the spool to another session or scope."""

from gateway.database.connection import Connection
from gateway.spool.deletion import grants_of_session, rename_in_schedules
from gateway.spool.errors import WrongState
from gateway.spool.operations import Operation, quoted
from gateway.spool.rows import CONFIGURED, INBOX_OPEN

_MOVE_TO_SESSION = (
    "UPDATE inbox SET session = ?, number = ?, state = 'received', answered_by = NULL "  # noqa: S608 - constants only
    f"WHERE turn = ? AND state IN ({quoted(INBOX_OPEN)})"
)


class MoveToSession(Operation, frozen=True, kw_only=True):
    """Let an unfinished message start from the beginning in another session of its scope."""

    turn: str
    session: str
    number: int

    def apply(self, connection: Connection) -> None:
        moved = connection.execute(_MOVE_TO_SESSION, (self.session, self.number, self.turn))
        if not moved.rowcount:
            raise WrongState(f"{self.turn} cannot move to another session: it is not unfinished.")


class MoveRows(Operation, frozen=True, kw_only=True):
    """Let the messages and the approval grants of a session follow it to its new key `to`."""

    session: str
    to: str
    scope: str
    number: int

    def apply(self, connection: Connection) -> None:
        connection.execute(
            "UPDATE inbox SET scope = ?, session = ?, number = ? WHERE session = ?",
            (self.scope, self.to, self.number, self.session),
        )
        if self.session == self.to:
            return
        rename_in_schedules(connection, self.session, self.to, scope=self.session.partition("#")[0])
        old, new = grants_of_session(self.session), grants_of_session(self.to)
        moved = (new, len(old) + 1, len(old), old)
        connection.execute(
            "DELETE FROM facts WHERE name IN (SELECT ? || substr(name, ?) FROM facts WHERE substr(name, 1, ?) = ?)",
            moved,
        )
        connection.execute("UPDATE facts SET name = ? || substr(name, ?) WHERE substr(name, 1, ?) = ?", moved)


class MoveTimetables(Operation, frozen=True, kw_only=True):
    """Let the reminders and schedules of a scope follow its sessions to the scope `to`, behind the numbers there.

    Those of the settings stay: their scope follows from their chat.
    """

    scope: str
    to: str

    def apply(self, connection: Connection) -> None:
        for table in ("reminders", "schedules"):
            found = connection.execute(
                f"SELECT id FROM {table} WHERE scope = ? AND substr(id, 1, ?) <> ? ORDER BY number",  # noqa: S608 - constants only
                (self.scope, len(CONFIGURED), CONFIGURED),
            ).fetchall()
            for (name,) in found:
                connection.execute(
                    f"UPDATE {table} SET scope = ?, number = "  # noqa: S608 - constants only
                    f"(SELECT coalesce(max(number), 0) + 1 FROM {table} WHERE scope = ?) WHERE id = ?",
                    (self.to, self.to, name),
                )
