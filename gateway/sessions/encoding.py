"""Entries as lines of JSON, and back: whatever a file holds, a line is an entry, one of a newer version, or damaged."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, get_args

import msgspec

from gateway.sessions.entries import (
    UNSTAMPED,
    Activated,
    Agent,
    Approval,
    Assistant,
    Checkpoint,
    Clear,
    Edit,
    Entry,
    Header,
    Model,
    Plan,
    SentFile,
    Status,
    Summary,
    Title,
    ToolResult,
    ToolUse,
    TurnEnd,
    Undo,
    Unknown,
    User,
    Workspace,
)
from gateway.sessions.state import UtcTime
from gateway.text import clean

__all__ = [
    "Damaged",
    "decode",
    "encode",
    "seal",
]


class Damaged(ValueError):
    """A line that is no entry."""


class _Stub(msgspec.Struct):
    type: str
    seq: int
    ts: UtcTime
    turn: str | None = None


_Known = (
    Header
    | User
    | Assistant
    | ToolUse
    | ToolResult
    | SentFile
    | Plan
    | Approval
    | Edit
    | Summary
    | Clear
    | Undo
    | Title
    | Workspace
    | Agent
    | Model
    | Status
    | Activated
    | TurnEnd
    | Checkpoint
)

_TAGS = frozenset(kind.__struct_config__.tag for kind in get_args(_Known))

_encoder = msgspec.json.Encoder()

_decoder = msgspec.json.Decoder(_Known)

_stub_decoder = msgspec.json.Decoder(_Stub)


def encode(entry: Entry) -> bytes:
    """Return the line of `entry`, newline included. JSON escapes control characters, so there is no other newline."""
    return _encoder.encode(entry) + b"\n"


def seal(entry: Entry, *, seq: int, now: datetime) -> tuple[Entry, bytes]:
    """Give `entry` its number, and the time unless it has one already; return it as it will be read, and its line."""
    ts = now if entry.ts is UNSTAMPED else entry.ts
    stamped = msgspec.structs.replace(entry, seq=seq, ts=ts if ts.tzinfo is UTC else ts.astimezone(UTC))
    try:
        return stamped, encode(stamped)
    except UnicodeEncodeError:
        line = _encoder.encode(_cleaned(msgspec.to_builtins(stamped))) + b"\n"
        return decode(line), line


def decode(line: bytes) -> Entry:
    """Read one line; `Damaged` when it is no entry, `Unknown` when it is one of a newer version."""
    try:
        entry: Entry = _decoder.decode(line)
    except (ValueError, RecursionError) as trouble:
        entry = _decode_unknown(line, trouble)
    if entry.seq < 1 or entry.ts is UNSTAMPED:
        raise Damaged("no seq or no ts")
    return entry


def _decode_unknown(line: bytes, trouble: Exception) -> Unknown:
    try:
        stub = _stub_decoder.decode(line)
    except (ValueError, RecursionError) as hopeless:
        raise Damaged(str(hopeless)) from hopeless
    if stub.type in _TAGS:
        raise Damaged(str(trouble)) from trouble
    return Unknown(kind=stub.type, seq=stub.seq, ts=stub.ts, turn=stub.turn)


def _cleaned(value: Any) -> Any:  # noqa: ANN401 - any JSON value, whatever a tool or a model has made of it.
    """Make text valid Unicode. This is done at the edge; here it only keeps a slip there from silencing a chat."""
    match value:
        case str():
            return clean(value)
        case list() | tuple():
            return [_cleaned(item) for item in value]
        case dict():
            return {_cleaned(name): _cleaned(item) for name, item in value.items()}
        case _:
            return value
