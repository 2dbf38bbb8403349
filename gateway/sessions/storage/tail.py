"""How much of a transcript's end is enough. Entries are handed over newest first, until it is; no file is touched here.

Nothing that was written earlier than what is enough can change what `fold` makes of it.
"""

from typing import Protocol

from gateway.sessions import entries as e
from gateway.sessions.entries import Entry
from gateway.sessions.history import is_conversation, is_summary_valid, is_turn_boundary, to_messages
from gateway.sessions.state import SessionState

__all__ = ["EnoughForHistory", "EnoughForLines", "EnoughForState", "NeverStop", "StopCondition"]


class StopCondition(Protocol):
    """Looks at entries from the last one backwards, and says when it needs no more."""

    def add(self, entry: Entry) -> None: ...

    @property
    def is_enough(self) -> bool: ...


class NeverStop:
    """Never enough: the whole transcript is wanted."""

    is_enough = False

    def add(self, entry: Entry) -> None:
        pass


class EnoughForState:
    """Enough to tell the state of the session `key`: all since its last checkpoint."""

    def __init__(self, key_is_right: "KeyCheck") -> None:
        self.is_enough = False
        self._key_is_right = key_is_right

    def add(self, entry: Entry) -> None:
        self.is_enough |= isinstance(entry, e.Checkpoint) and self._key_is_right(entry.key)


class KeyCheck(Protocol):
    def __call__(self, key: str, /) -> bool: ...


class EnoughForLines:
    """Enough to show a person the last `limit` lines."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._undone: set[str | None] = set()

    def add(self, entry: Entry) -> None:
        if isinstance(entry, e.Clear):
            self._left = 0
        elif isinstance(entry, e.Undo):
            self._undone.add(entry.undone)
        elif isinstance(entry, e.User | e.Assistant) and entry.content and entry.turn not in self._undone:
            self._left -= 1

    @property
    def is_enough(self) -> bool:
        return self._left <= 0


class EnoughForHistory:
    """Enough to show the model the newest turn whole, and `messages` messages, or a summary of all, before it."""

    def __init__(self, messages: int, state: SessionState) -> None:
        self._left = messages
        self._first = state.first
        self._knows_summary = not state.has_summary
        self._summary: e.Summary | None = None
        self._is_summary_certain = False
        self._undos: list[e.Undo] = []
        self._undone: set[str | None] = set()
        self._newest: Entry | None = None
        self._is_past_newest = False
        """Whether the newest turn has been seen whole, as it is shown, or undone, whole."""
        self._later: Entry | None = None
        """The entry of the conversation that was handed over last."""
        self._answer: list[Entry] = []
        """What came after the next message of the user, newest first."""
        self._is_cleared = False

    @property
    def is_enough(self) -> bool:
        if self._is_cleared:
            return True
        return self._knows_summary and self._is_past_newest and (self._left <= 0 or self._is_summed_up)

    @property
    def _is_summed_up(self) -> bool:
        """Tell whether all that the summary does not cover has been seen."""
        if not self._is_summary_certain or self._summary is None or self._later is None:
            return False
        return self._summary.from_seq <= self._first and self._later.seq <= self._summary.covers

    def add(self, entry: Entry) -> None:
        if entry.turn in self._undone:
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
                self._trust(entry)
            case _ if is_conversation(entry):
                self._add_spoken(entry)

    def _trust(self, checkpoint: e.Checkpoint) -> None:
        """Take over the summary that stood at a checkpoint, unless something it tells of was undone since."""
        if checkpoint.summary is None:
            self._knows_summary = True
        elif is_summary_valid(checkpoint.summary, self._undos):
            self._summary = checkpoint.summary
            self._is_summary_certain = self._knows_summary = True

    def _add_spoken(self, entry: Entry) -> None:
        self._newest = self._newest or entry
        self._is_past_newest |= entry.turn is None or entry.turn != self._newest.turn
        if self._summary is not None and not self._is_summary_certain and entry.seq <= self._summary.covers:
            self._check_border(entry)
        self._later = entry
        if self._counts(entry):
            self._answer.append(entry)
        if isinstance(entry, e.User):
            self._left -= len(to_messages(reversed(self._answer)))
            self._answer.clear()

    def _check_border(self, entry: Entry) -> None:
        """Believe a summary once the entry is seen with which it ends, or look for an earlier one."""
        if is_turn_boundary(entry, self._later):
            self._is_summary_certain = self._knows_summary = True
        else:
            self._summary = None

    def _counts(self, entry: Entry) -> bool:
        """Tell whether it is shown besides the newest turn and the summary."""
        if self._newest is not None and entry.turn is not None and entry.turn == self._newest.turn:
            return False
        summary = self._summary
        return summary is None or not summary.from_seq <= entry.seq <= summary.covers
