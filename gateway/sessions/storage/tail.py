"""Stop conditions for reading a transcript backwards: how much of its end is enough. Pure.

Entries are added newest first. Entries before the stop cannot change the result.
"""

from collections.abc import Callable
from typing import Protocol

from gateway.sessions import entries as e
from gateway.sessions.entries import Entry
from gateway.sessions.history import is_conversation, is_summary_valid, is_turn_boundary, is_visible, to_messages
from gateway.sessions.state import SessionState


class StopCondition(Protocol):
    """Gets the entries of a transcript from the last one backwards, and tells when no more are needed."""

    def add(self, entry: Entry) -> None: ...

    @property
    def is_enough(self) -> bool: ...


class NeverStop:
    """Read the whole transcript."""

    is_enough = False

    def add(self, entry: Entry) -> None:
        pass


class EnoughForState:
    """Enough for the state of a session: everything back to its last checkpoint."""

    def __init__(self, is_right_key: Callable[[str], bool]) -> None:
        self.is_enough = False
        self._is_right_key = is_right_key

    def add(self, entry: Entry) -> None:
        self.is_enough |= isinstance(entry, e.Checkpoint) and self._is_right_key(entry.key)


class EnoughForLines:
    """Enough for the last `limit` lines that a person sees, with the whole turn of the first of them.

    A file of that turn may be further back, although it is shown after the text.
    """

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._undone: set[str | None] = set()
        self._turn: str | None = None
        self.is_enough = False

    def add(self, entry: Entry) -> None:
        if isinstance(entry, e.Clear) or (self._left <= 0 and entry.turn != self._turn):
            self.is_enough = True
        elif isinstance(entry, e.Undo):
            self._undone.add(entry.undone)
        elif isinstance(entry, e.User | e.Assistant | e.System) and entry.content and entry.turn not in self._undone:
            self._left -= 1
            self._turn = entry.turn
            self.is_enough = self._left <= 0 and entry.turn is None


class EnoughForHistory:
    """Enough for the history: the newest turn, and before it `messages` messages or a summary of all earlier ones."""

    def __init__(self, messages: int, state: SessionState) -> None:
        self._left = messages
        self._first = state.first
        # True once it is clear which summary is the current one, or that there is none.
        self._knows_summary = not state.has_summary
        self._summary: e.Summary | None = None
        # True once `_summary` is known to end where a turn ends.
        self._is_summary_certain = False
        self._undos: list[e.Undo] = []
        self._undone: set[str | None] = set()
        self._newest: Entry | None = None
        # True once the newest turn has been seen whole.
        self._is_past_newest = False
        # The entry of the conversation that was added last: the next later one.
        self._later: Entry | None = None
        # The entries after the next user message, newest first.
        self._answer: list[Entry] = []
        self._is_cleared = False

    @property
    def is_enough(self) -> bool:
        if self._is_cleared:
            return True
        return self._knows_summary and self._is_past_newest and (self._left <= 0 or self._is_all_covered)

    @property
    def _is_all_covered(self) -> bool:
        """True if the summary covers everything that has not been seen yet."""
        if not self._is_summary_certain or self._summary is None or self._later is None:
            return False
        return self._summary.from_seq <= self._first and self._later.seq <= self._summary.covers

    def add(self, entry: Entry) -> None:
        if entry.turn in self._undone:
            return
        if is_conversation(entry):
            self._add_conversation(entry)
            return
        match entry:
            case e.Clear():
                self._is_cleared = True
            case e.Undo():
                self._undos.append(entry)
                self._undone.add(entry.undone)
            case e.Summary() if self._summary is None and is_summary_valid(entry, self._undos):
                self._summary = entry
            case e.Checkpoint() if self._summary is None:
                # A checkpoint repeats the summary of its time. It holds unless a turn of it was undone since.
                if entry.summary is None:
                    self._knows_summary = True
                elif is_summary_valid(entry.summary, self._undos):
                    self._summary = entry.summary
                    self._is_summary_certain = self._knows_summary = True

    def _add_conversation(self, entry: Entry) -> None:
        newest = self._newest = self._newest or entry
        is_of_newest = entry.turn is not None and entry.turn == newest.turn
        self._is_past_newest |= not is_of_newest
        summary = self._summary
        if summary is not None and not self._is_summary_certain and entry.seq <= summary.covers:
            # This is the last entry that the summary covers. If the turn goes on after it, the summary is invalid,
            # and an earlier one may be the current one.
            if is_turn_boundary(entry, self._later):
                self._is_summary_certain = self._knows_summary = True
            else:
                summary = self._summary = None
        self._later = entry
        # Count the messages that are shown besides the newest turn and the summary.
        if not is_of_newest and (summary is None or not summary.from_seq <= entry.seq <= summary.covers):
            self._answer.append(entry)
        if isinstance(entry, e.User):
            # Without tools, each visible entry is one message. Most answers have none, and this is much faster.
            if any(type(each) is e.ToolUse for each in self._answer):
                self._left -= len(to_messages(reversed(self._answer)))
            else:
                self._left -= sum(map(is_visible, self._answer))
            self._answer.clear()
