"""The facts that `/status` gives: written by the daemon, read by the command line, defined once."""

from datetime import datetime

import msgspec

__all__ = ["ChannelFacts", "Facts", "FlushFacts", "ModelFacts", "SpoolFacts", "TurnFacts"]


class ChannelFacts(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    account: str
    state: str
    reason: str
    since: datetime
    last_event_at: datetime | None
    last_error: str
    last_error_at: datetime | None


class TurnFacts(msgspec.Struct, frozen=True, kw_only=True):
    channel: str
    agent: str
    session: str
    seconds: float


class SpoolFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Unfinished messages and replies by their state, and dead ones."""

    bytes: int
    messages: dict[str, int]
    replies: dict[str, int]


class FlushFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`age_seconds` since one has worked; `took_seconds` is the last one's, however it went."""

    age_seconds: float
    took_seconds: float | None
    failures: int


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`most_within_seconds`: 95 of 100 answers were whole by then; None when that was beyond measure."""

    name: str
    requests: int
    failed: int
    mean_seconds: float
    most_within_seconds: float | None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """`sentence` is what `/status` says in a chat. `spool` is None when it did not answer."""

    version: str
    sentence: str
    state: str
    ready: bool
    taken_at: datetime
    started_at: datetime
    uptime_seconds: float
    troubles: tuple[str, ...]
    warnings: tuple[str, ...]
    channels: tuple[ChannelFacts, ...]
    turns_running: int
    turns_awaiting_approval: int
    turns: tuple[TurnFacts, ...]
    messages_waiting: int
    replies_waiting: int
    sessions: int
    scopes: int
    spool: SpoolFacts | None
    flush: FlushFacts
    memory_bytes: int
    open_files: int
    disk_free_bytes: int | None
    models: tuple[ModelFacts, ...]
