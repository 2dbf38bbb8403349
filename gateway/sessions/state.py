"""The state of a session without its history, as the index and the checkpoints contain it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec

UtcTime = Annotated[datetime, msgspec.Meta(tz=True)]


class SessionStatus(StrEnum):
    ACTIVE = "active"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    ERROR = "error"

    @property
    def word(self) -> str:
        """The status for people. A scope has many open sessions, but one active one."""
        return _STATUS_WORDS[self]


_STATUS_WORDS = {
    SessionStatus.ACTIVE: "open",
    SessionStatus.COMPLETED: "closed",
    SessionStatus.CANCELLED: "cancelled",
    SessionStatus.ERROR: "damaged",
}


class SessionState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The result of all entries of a session, except its history."""

    number: int
    agent: str
    created_at: UtcTime
    updated_at: UtcTime
    """The time of the last message."""
    last_accessed: UtcTime
    """The time of the last use, including a resume."""
    seq: int
    epoch: int
    highest_number: int
    title: str = ""
    messages: int = 0
    turns: int = 0
    status: SessionStatus = SessionStatus.ACTIVE
    model: str | None = None
    workspace: str | None = None
    first: int = 0
    """The seq of the first message since the last `clear`; 0: there is no message."""
    has_summary: bool = False
    """True if a summary was written since the last `clear`. Then a reader of the tail has to look for it."""
    checkpoint: int = 0
    """The seq of the last checkpoint."""
    checkpoint_at: int = 0
    """The size of the transcript before that checkpoint."""
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_micros: int = 0
    """The sum over all turns, including undone and cleared ones: they have been paid for."""
    id: str = ""
    """As in the header. Empty if the state was stored by a version without it, until the header is read again."""
    channel: str = ""
    """The channel on which it was started."""
    repo: str = ""
    created_by: str = ""
    status_by: str = ""
    """Who has set the status; empty for the first one."""
    status_why: str = ""
    size: int = 0
    """Bytes of the transcript. Set in the index only: if the file has another size, it is read again."""
