"""Operations that bind rows of the spool to another session."""

import sqlite3

from gateway.spool.errors import WrongState
from gateway.spool.operations import Operation, quoted
from gateway.spool.rows import INBOX_OPEN

_MOVE_TO_SESSION = (
    "UPDATE inbox SET session = ?, number = ?, state = 'received', answered_by = NULL "  # noqa: S608 - constants only
    f"WHERE turn = ? AND state IN ({quoted(INBOX_OPEN)})"
)


class MoveToSession(Operation, frozen=True, kw_only=True):
    """Let an unfinished message start from the beginning in another session of its scope."""

    turn: str
    session: str
    number: int

    def apply(self, connection: sqlite3.Connection) -> None:
        moved = connection.execute(_MOVE_TO_SESSION, (self.session, self.number, self.turn))
        if not moved.rowcount:
            raise WrongState(f"{self.turn} cannot move to another session: it is not unfinished.")
