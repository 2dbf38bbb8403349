"""Which session a transcript says it holds, and in which format. Pure: what is read, and the file's name, in."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import msgspec

from gateway.sessions.entries import (
    FORMAT,
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
from gateway.sessions.keys import file_name, parse_key
from gateway.sessions.state import UtcTime
from gateway.text import clean


class DamagedEntry(ValueError):
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


def stamp(entry: Entry, *, seq: int, now: datetime) -> tuple[Entry, bytes]:
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
        raise DamagedEntry("no seq or no ts")
    return entry


def _decode_unknown(line: bytes, trouble: Exception) -> Unknown:
    try:
        stub = _stub_decoder.decode(line)
    except (ValueError, RecursionError) as hopeless:
        raise DamagedEntry(str(hopeless)) from hopeless
    if stub.type in _TAGS:
        raise DamagedEntry(str(trouble)) from trouble
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


class UnreadableTranscript(Exception):
    """A file that is no transcript of the session it is named for."""


class NewerTranscript(Exception):
    """A transcript that only a newer version can read. `outline` has what can be told of it."""

    def __init__(self, outline: HeaderOutline) -> None:
        super().__init__(f"it was written by a newer Gatehouse (format {outline.version}, this one reads {FORMAT})")
        self.outline = outline


class HeaderOutline(msgspec.Struct, frozen=True, kw_only=True):
    """What the header of any version tells."""

    version: int
    key: str
    agent: str = ""
    epoch: int = 0
    highest_number: int = 0


_outline_decoder = msgspec.json.Decoder(HeaderOutline)

_Naming = Header | Activated | Checkpoint
"""The entries that say to which session they belong."""


def refuse_newer(path: Path, head: bytes) -> None:
    """Raise `Newer` before anything is changed in a file whose format we do not know."""
    try:
        outline = _outline_decoder.decode(head)
    except (ValueError, RecursionError):
        return
    if outline.version > FORMAT and file_name(outline.key) == path.name:
        raise NewerTranscript(outline)


def is_named(path: Path, entries: Iterable[Entry]) -> bool:
    """Tell whether one of the entries says that this is the file of its session."""
    return any(isinstance(entry, _Naming) and file_name(entry.key) == path.name for entry in entries)


def with_header(entries: list[Entry], path: Path) -> list[Entry]:
    """Check that these entries are those of the session the file is named for, and put a lost header back."""
    for entry in entries:
        if isinstance(entry, _Naming) and file_name(entry.key) == path.name:
            header = _checked(entry) if isinstance(entry, Header) else _header_from(entry, entries)
            return [header, *(other for other in entries if not isinstance(other, Header))]
    raise UnreadableTranscript(f"{path.name} does not say which session it holds")


def _checked(header: Header) -> Header:
    """Believe the key, which the file's name vouches for, where the header contradicts itself."""
    scope, number = _parsed(header.key)
    return msgspec.structs.replace(header, scope=scope, number=number)


def _parsed(key: str) -> tuple[str, int]:
    try:
        return parse_key(key)
    except ValueError as trouble:
        raise UnreadableTranscript(str(trouble)) from trouble


def _header_from(naming: Activated | Checkpoint, entries: list[Entry]) -> Header:
    """Make up a header for a session whose own was damaged; where it was started is all that is lost."""
    scope, number = _parsed(naming.key)
    told = naming.state if isinstance(naming, Checkpoint) else naming
    return Header(
        seq=1,
        ts=entries[0].ts,
        version=FORMAT,
        id=file_name(naming.key).removesuffix(".jsonl")[-32:],
        key=naming.key,
        scope=scope,
        number=number,
        created=entries[0].ts,
        agent=scope.split(":")[1] if ":" in scope else "",
        origin=None,
        epoch=told.epoch,
        highest_number=told.highest_number,
    )
