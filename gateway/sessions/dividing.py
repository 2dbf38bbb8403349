"""Which part of a session is to be summed up: from its beginning to the end of a turn. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.conversation import Message
from gateway.sessions import entries as e
from gateway.sessions.entries import Entry
from gateway.sessions.history import as_messages, counted, is_spoken, standing_summary

__all__ = ["Older", "is_still", "older_part"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Older:
    """What a summary is to stand for: the earlier summary, if any, and the messages since, up to a turn's end."""

    earlier: str
    messages: list[Message]
    kept: int
    """How many messages come after it."""
    from_seq: int
    covers: int
    seen: int
    """The seq of the newest entry that was looked at."""


def older_part(
    entries: Sequence[Entry], *, first: int, keep_tokens: int, keep_messages: int, size: Callable[[Message], int]
) -> Older | None:
    """Divide a session before its newest turns: as many as are within both limits, and the newest in any case.

    `first` is the seq of the session's first message. None when nothing is old enough.
    """
    summary = standing_summary(entries)
    spoken = [entry for entry in counted(entries) if _is_shown(entry) and not _is_covered(entry, summary)]
    grouped = _by_turn(spoken)
    turns = [as_messages(turn) for turn in grouped]
    kept = _newest(turns, keep_tokens, keep_messages, size)
    old = grouped[: len(grouped) - kept]
    messages = [message for turn in turns[: len(old)] for message in turn]
    if not messages:
        return None
    return Older(
        earlier=summary.content if summary else "",
        messages=messages,
        kept=sum(len(turn) for turn in turns[len(old) :]),
        from_seq=min(first or spoken[0].seq, summary.from_seq if summary else spoken[0].seq),
        covers=_end(entries, old[-1]),
        seen=max(entry.seq for entry in entries),
    )


def is_still(older: Older, entries: Sequence[Entry]) -> bool:
    """Tell whether what was to be summed up is as it was: nothing of it was undone or cleared meanwhile."""
    since = [entry for entry in entries if entry.seq > older.seen]
    return not any(
        isinstance(entry, e.Clear) or (isinstance(entry, e.Undo) and entry.first <= older.covers) for entry in since
    )


def _is_shown(entry: Entry) -> bool:
    """Tell whether the model sees anything of it."""
    return is_spoken(entry) or isinstance(entry, e.Edit)


def _is_covered(entry: Entry, summary: e.Summary | None) -> bool:
    return summary is not None and summary.from_seq <= entry.seq <= summary.covers


def _by_turn(spoken: Sequence[Entry]) -> list[list[Entry]]:
    """Put together what must not be parted: a turn from its first to its last entry, and a question and its answer."""
    ends = {entry.turn: at for at, entry in enumerate(spoken) if entry.turn is not None}
    turns: list[list[Entry]] = []
    goes_on_until = -1
    for at, entry in enumerate(spoken):
        begins = at > goes_on_until and (entry.turn is not None or not turns or isinstance(entry, e.User))
        if begins:
            turns.append([])
        turns[-1].append(entry)
        goes_on_until = max(goes_on_until, ends.get(entry.turn, at) if entry.turn else at)
    return turns


def _newest(turns: list[list[Message]], tokens: int, messages: int, size: Callable[[Message], int]) -> int:
    """Return how many turns at the end stay as they are."""
    kept = 0
    for turn in reversed(turns):
        tokens -= sum(map(size, turn))
        messages -= len(turn)
        if kept and (tokens < 0 or messages < 0):
            break
        kept += 1
    return kept


def _end(entries: Sequence[Entry], turn: list[Entry]) -> int:
    """Return the seq of the last entry of a turn, which need not be one that the model sees."""
    names = {entry.turn for entry in turn if entry.turn is not None}
    return max(turn[-1].seq, *(entry.seq for entry in entries if entry.turn in names))
