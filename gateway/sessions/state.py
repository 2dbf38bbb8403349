"""What is known of a session without its history: what the index lists and checkpoints repeat."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec

__all__ = [
    "SessionState",
    "SessionStatus",
    "UtcTime",
]

UtcTime = Annotated[datetime, msgspec.Meta(tz=True)]


class SessionStatus(StrEnum):
    ACTIVE = "active"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    ERROR = "error"


class SessionState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """All that the entries of a session add up to, but for its history. It is what the index and checkpoints hold."""

    number: int
    agent: str
    created_at: UtcTime
    updated_at: UtcTime
    """When somebody last said something."""
    last_accessed: UtcTime
    """When anything last happened, a resume too."""
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
    """The seq of the first message since the last `clear`; 0 when there is none."""
    has_summary: bool = False
    """Whether a summary was written since the last `clear`, which readers of the tail then have to look for."""
    checkpoint: int = 0
    """The seq of the last checkpoint."""
    checkpoint_at: int = 0
    """Bytes of the transcript before that checkpoint."""
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_micros: int = 0
    """What all turns have used, those that were undone or cleared too: they have been paid for."""
    size: int = 0
    """Bytes of the transcript, where it is known (in the index): a file of another size has to be read again."""
