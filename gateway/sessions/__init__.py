"""Sessions: typed entries in append-only transcripts, an index that can be rebuilt from them, and their one owner.

Entries are made as `entries.User(...)`; their class names are too plain to stand alone.
"""

from gateway.sessions import entries
from gateway.sessions.entries import Entry, TurnOutcome
from gateway.sessions.history import Spoken, history_for_model, last_turn, lines, shown
from gateway.sessions.manager import SessionManager
from gateway.sessions.recovery import RecoveryReport
from gateway.sessions.retention import IsBusy, Leaving, OnLeaving, SweepReport
from gateway.sessions.session import Session, SessionMeta, Undone
from gateway.sessions.state import SessionStatus
from gateway.sessions.storage.search import Hit, SearchResult
from gateway.sessions.storage.verify import Problem, VerifyReport
from gateway.sessions.turn_progress import interrupted, plan_at_hand, said, sent_files, step_at_hand

__all__ = [
    "Entry",
    "Hit",
    "IsBusy",
    "Leaving",
    "OnLeaving",
    "Problem",
    "RecoveryReport",
    "SearchResult",
    "Session",
    "SessionManager",
    "SessionMeta",
    "SessionStatus",
    "Spoken",
    "SweepReport",
    "TurnOutcome",
    "Undone",
    "VerifyReport",
    "entries",
    "history_for_model",
    "interrupted",
    "last_turn",
    "lines",
    "plan_at_hand",
    "said",
    "sent_files",
    "shown",
    "step_at_hand",
]
