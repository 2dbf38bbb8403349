"""Sessions: append-only transcripts of typed entries, an index of them, and `SessionManager`, their only owner.

Write entries as `entries.User(...)`: their class names are too general to be imported alone.
"""

from gateway.sessions import entries
from gateway.sessions.archiver import ArchivedCopy
from gateway.sessions.directory import SessionFilter, SessionPage
from gateway.sessions.entries import Entry, TurnOutcome
from gateway.sessions.history import VisibleLine, undo_last_turn, visible_text
from gateway.sessions.manager import SessionManager
from gateway.sessions.recovery import RecoveryReport
from gateway.sessions.retention import Leaving
from gateway.sessions.session import Session, SessionEnded, SessionMeta
from gateway.sessions.state import SessionStatus
from gateway.sessions.storage.archive import ArchivedSession
from gateway.sessions.storage.verify import SessionProblem, VerifyReport
from gateway.sessions.turn_progress import (
    assistant_texts,
    current_plan,
    interrupted_results,
    open_tool_calls,
    sent_files,
    unfinished_message,
)

__all__ = [
    "ArchivedCopy",
    "ArchivedSession",
    "Entry",
    "Leaving",
    "RecoveryReport",
    "Session",
    "SessionEnded",
    "SessionFilter",
    "SessionManager",
    "SessionMeta",
    "SessionPage",
    "SessionProblem",
    "SessionStatus",
    "TurnOutcome",
    "VerifyReport",
    "VisibleLine",
    "assistant_texts",
    "current_plan",
    "entries",
    "interrupted_results",
    "open_tool_calls",
    "sent_files",
    "undo_last_turn",
    "unfinished_message",
    "visible_text",
]
