"""What a person sees of a session: the lines that were said, and labels for files. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gateway.sessions import entries as e
from gateway.sessions.counting import counted
from gateway.sessions.entries import Entry

__all__ = [
    "Spoken",
    "lines",
    "shown",
]

# Made once: a union in each `isinstance` would be made anew for each entry.
_SEEN = (e.User, e.Assistant, e.SentFile)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """One visible line of a session; `role` is `user` or `assistant`."""

    role: str
    text: str
    ts: datetime
    file: e.SentFile | None = None


def lines(entries: Sequence[Entry], limit: int) -> list[Spoken]:
    """Return the last `limit` lines that a person sees, oldest first. Summaries are for the model only."""
    if limit < 1:
        return []
    spoken = [_spoken(entry) for entry in counted(entries) if isinstance(entry, _SEEN)]
    return [line for line in spoken if line.text][-limit:]


def _spoken(entry: e.User | e.Assistant | e.SentFile) -> Spoken:
    match entry:
        case e.User():
            return Spoken(role="user", text=shown(entry), ts=entry.ts)
        case e.Assistant():
            return Spoken(role="assistant", text=entry.content, ts=entry.ts)
        case e.SentFile():
            return Spoken(role="assistant", text=f"[file: {entry.name}]", ts=entry.ts, file=entry)


def shown(entry: e.User) -> str:
    """Return what a person sees of a message: its text, and a label for each file."""
    return "\n".join(filter(None, [entry.content, *map(_label, entry.attachments)]))


def _label(file: e.Attached) -> str:
    return f"[{file.kind}: “{file.said}”]" if file.said else f"[{file.kind}: {file.name}]"
