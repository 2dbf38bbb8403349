"""Sessions: typed entries in append-only transcripts, an index that can be rebuilt from them, and their one owner.

Entries are made as `entries.User(...)`; their class names are too plain to stand alone.
"""

from gateway.sessions import entries
from gateway.sessions.entries import Entry, TurnOutcome
from gateway.sessions.history import VisibleLine, history_for_model, undo_last_turn, visible_lines, visible_text
from gateway.sessions.manager import SessionManager
from gateway.sessions.recovery import RecoveryReport
from gateway.sessions.retention import IsBusy, Leaving, OnLeaving, SweepReport
from gateway.sessions.session import Session, SessionMeta
from gateway.sessions.state import SessionStatus
from gateway.sessions.storage.search import Hit, SearchResult
from gateway.sessions.storage.verify import SessionProblem, VerifyReport
from gateway.sessions.turn_progress import (
    assistant_texts,
    current_plan,
    interrupted_results,
    open_tool_calls,
    sent_files,
)

__all__ = [
    "Entry",
    "Hit",
    "IsBusy",
    "Leaving",
    "OnLeaving",
    "RecoveryReport",
    "SearchResult",
    "Session",
    "SessionManager",
    "SessionMeta",
    "SessionProblem",
    "SessionStatus",
    "SweepReport",
    "TurnOutcome",
    "VerifyReport",
    "VisibleLine",
    "assistant_texts",
    "current_plan",
    "entries",
    "history_for_model",
    "interrupted_results",
    "open_tool_calls",
    "sent_files",
    "undo_last_turn",
    "visible_lines",
    "visible_text",
]
