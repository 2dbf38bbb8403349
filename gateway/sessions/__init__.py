"""Sessions: typed entries in append-only transcripts, an index that can be rebuilt from them, and their one owner.

Entries are made as `entries.User(...)`; their class names are too plain to stand alone.
"""

from gateway.sessions import entries
from gateway.sessions.at_hand import interrupted, plan_at_hand, said, sent_files, step_at_hand
from gateway.sessions.counting import last_turn
from gateway.sessions.dividing import Older, is_still, older_part
from gateway.sessions.entries import Entry, TurnOutcome
from gateway.sessions.manager import SessionManager
from gateway.sessions.messages import history
from gateway.sessions.meta import Session, SessionMeta, Undone
from gateway.sessions.recovery import RecoveryReport
from gateway.sessions.search import Hit, SearchResult
from gateway.sessions.spoken import Spoken, lines, shown
from gateway.sessions.state import SessionStatus
from gateway.sessions.upkeep import IsBusy, Leaving, OnLeaving, SweepReport
from gateway.sessions.verification import Problem, VerifyReport

__all__ = [
    "Entry",
    "Hit",
    "IsBusy",
    "Leaving",
    "Older",
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
    "history",
    "interrupted",
    "is_still",
    "last_turn",
    "lines",
    "older_part",
    "plan_at_hand",
    "said",
    "sent_files",
    "shown",
    "step_at_hand",
]
