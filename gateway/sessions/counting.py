"""Which entries of a session count: not what was cleared or undone, and what a summary stands for. Pure."""

from collections.abc import Iterable, Sequence

from gateway.sessions import entries as e
from gateway.sessions.entries import Entry

__all__ = [
    "counted",
    "holds",
    "is_border",
    "is_spoken",
    "is_visible",
    "last_turn",
    "standing_summary",
]

_CONVERSATION = (e.User, e.Assistant, e.ToolUse, e.ToolResult)


def counted(entries: Sequence[Entry], *, enough: int | None = None, turn: str | None = None) -> list[Entry]:
    """Return the entries after the last `clear`, without those of turns that were undone later.

    With `enough`, what lies before that many messages may be left out; those of `turn` are not among them.
    """
    counting: list[Entry] = []
    undone: set[str | None] = set()
    said = 0
    for entry in reversed(entries):
        if isinstance(entry, e.Clear):
            break
        if isinstance(entry, e.Undo):
            undone.add(entry.undone)
        if undone and entry.turn in undone:
            continue
        counting.append(entry)
        if enough is not None and (turn is None or entry.turn != turn) and is_visible(entry):
            said += 1
            if said > enough and isinstance(entry, e.User):
                break
    return counting[::-1]


def last_turn(entries: Sequence[Entry]) -> e.Undo | None:
    """Return the entry that undoes the newest turn which still counts, or None when there is none."""
    counting = counted(entries)
    turn = next((entry.turn for entry in reversed(counting) if isinstance(entry, e.User) and entry.turn), None)
    if turn is None:
        return None
    of_turn = [entry for entry in counting if entry.turn == turn]
    return e.Undo(undone=turn, first=of_turn[0].seq, messages=sum(map(is_visible, of_turn)))


def standing_summary(entries: Sequence[Entry]) -> e.Summary | None:
    """Return the newest valid summary. The entries may be a tail, from a checkpoint or from before the summary on."""
    if not any(type(entry) is e.Summary or (type(entry) is e.Checkpoint and entry.summary) for entry in entries):
        return None
    cleared = max((entry.seq for entry in entries if isinstance(entry, e.Clear)), default=0)
    counting = counted(entries)
    undos = [entry for entry in counting if isinstance(entry, e.Undo)]
    for entry in reversed(counting):
        summary = entry.summary if isinstance(entry, e.Checkpoint) else entry
        if isinstance(summary, e.Summary) and cleared < summary.from_seq and holds(summary, undos):
            before = next((x for x in reversed(counting) if is_spoken(x) and x.seq <= summary.covers), None)
            after = next((x for x in counting if is_spoken(x) and x.seq > summary.covers), None)
            if is_border(before, after):
                return summary
    return None


def holds(summary: e.Summary, undos: Iterable[e.Undo]) -> bool:
    """Tell whether `summary` speaks of the past only, and of nothing that was undone since."""
    if not summary.from_seq <= summary.covers < summary.seq:
        return False
    return not any(undo.seq > summary.seq and summary.from_seq <= undo.first <= summary.covers for undo in undos)


def is_spoken(entry: Entry) -> bool:
    """Tell whether it is part of the conversation."""
    return isinstance(entry, _CONVERSATION)


def is_visible(entry: Entry) -> bool:
    """Tell whether a person sees it: an assistant entry without text only carries tool calls."""
    return isinstance(entry, e.User) or (isinstance(entry, e.Assistant) and entry.content != "")


def is_border(before: Entry | None, after: Entry | None) -> bool:
    """Tell whether no turn goes on from `before` to `after`, between which a summary ends."""
    return before is None or after is None or before.turn is None or before.turn != after.turn
