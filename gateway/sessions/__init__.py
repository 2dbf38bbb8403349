"""Sessions: typed entries in append-only transcripts, an index that can be rebuilt from them, and their one owner.

Entries are made as `entries.User(...)`; their class names are too plain to stand alone.
"""

from gateway.sessions import entries
from gateway.sessions.entries import Entry, SessionStatus, TurnOutcome
from gateway.sessions.fold import Spoken, history, last_turn, lines
from gateway.sessions.manager import SessionManager
from gateway.sessions.meta import Session, SessionMeta
from gateway.sessions.recovery import RecoveryReport

__all__ = [
    "Entry",
    "RecoveryReport",
    "Session",
    "SessionManager",
    "SessionMeta",
    "SessionStatus",
    "Spoken",
    "TurnOutcome",
    "entries",
    "history",
    "last_turn",
    "lines",
]
