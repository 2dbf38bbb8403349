"""Transcript entries as lines of JSON, and the checks that a file contains the session that it is named for. Pure."""

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
    System,
    Title,
    ToolResult,
    ToolUpdate,
    ToolUse,
    TurnEnd,
    Undo,
    Unknown,
    User,
    Workspace,
)
from gateway.sessions.keys import derived_id, file_name, parse_key
from gateway.sessions.state import UtcTime
from gateway.text import clean


class DamagedEntry(ValueError):
    """A line that is not an entry."""


class _Stub(msgspec.Struct):
    type: str
    seq: int
    ts: UtcTime
    turn: str | None = None


_Known = (
    Header
    | User
    | Assistant
    | System
    | ToolUse
    | ToolResult
    | ToolUpdate
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
    """Return the line of `entry`, newline included. JSON escapes control characters, so it has no other newline."""
    return _encoder.encode(entry) + b"\n"


def stamp(entry: Entry, *, seq: int, now: datetime) -> tuple[Entry, bytes]:
    """Give `entry` its seq, and the time unless it has one. Return it as a reader will decode it, and its line."""
    ts = now if entry.ts is UNSTAMPED else entry.ts
    stamped = msgspec.structs.replace(entry, seq=seq, ts=ts if ts.tzinfo is UTC else ts.astimezone(UTC))
    try:
        return stamped, _encoder.encode(stamped) + b"\n"
    except UnicodeEncodeError:  # Text is cleaned where it comes in. If that missed something, the chat goes on here.
        line = _encoder.encode(_cleaned(msgspec.to_builtins(stamped))) + b"\n"
        return decode(line), line


def _cleaned(value: Any) -> Any:  # noqa: ANN401 - any JSON value, from a tool or a model.
    match value:
        case str():
            return clean(value)
        case list() | tuple():
            return [_cleaned(item) for item in value]
        case dict():
            return {_cleaned(name): _cleaned(item) for name, item in value.items()}
        case _:
            return value


def decode(line: bytes) -> Entry:
    """Decode one line. Raises `DamagedEntry` if it is not an entry. An entry of a newer version becomes `Unknown`."""
    entry: Entry
    try:
        entry = _decoder.decode(line)
    except (ValueError, RecursionError) as error:
        try:
            stub = _stub_decoder.decode(line)
        except (ValueError, RecursionError) as hopeless:
            raise DamagedEntry(str(hopeless)) from hopeless
        # A known type that does not fit its definition is damage, not a newer version: fields are only ever added.
        if stub.type in _TAGS:
            raise DamagedEntry(str(error)) from error
        entry = Unknown(kind=stub.type, seq=stub.seq, ts=stub.ts, turn=stub.turn)
    if entry.seq < 1 or entry.ts is UNSTAMPED:
        raise DamagedEntry("no seq or no ts")
    return entry


class UnreadableTranscript(Exception):
    """A file that does not contain the session that it is named for."""


class NewerTranscript(Exception):
    """A transcript that only a newer version can read. `outline` has the part of its header that all versions share."""

    def __init__(self, outline: HeaderOutline) -> None:
        super().__init__(f"it was written by a newer Gatehouse (format {outline.version}, this one reads {FORMAT})")
        self.outline = outline


class HeaderOutline(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a header that every version has."""

    version: int
    key: str
    agent: str = ""
    epoch: int = 0
    highest_number: int = 0


_outline_decoder = msgspec.json.Decoder(HeaderOutline)

# The entries that name their session.
_WithKey = Header | Activated | Checkpoint


def refuse_newer(path: Path, first_line: bytes) -> None:
    """Raise `NewerTranscript` if the file has a newer format. Call this before changing the file."""
    try:
        outline = _outline_decoder.decode(first_line)
    except (ValueError, RecursionError):
        return
    # The name check tells a newer format from a damaged line that happens to have a large number in it.
    if outline.version > FORMAT and file_name(outline.key) == path.name:
        raise NewerTranscript(outline)


def names_session(entries: Iterable[Entry], path: Path) -> bool:
    """Return True if one of the entries belongs to the session that the file is named for."""
    return any(isinstance(entry, _WithKey) and file_name(entry.key) == path.name for entry in entries)


def with_header(entries: list[Entry], path: Path) -> list[Entry]:
    """Return the entries of a whole file with a valid header in front; a damaged header is reconstructed.

    Raises `UnreadableTranscript` if no entry belongs to the session that the file is named for.
    """
    for entry in entries:
        if isinstance(entry, _WithKey) and file_name(entry.key) == path.name:
            break
    else:
        raise UnreadableTranscript(f"{path.name} does not name its session")
    try:
        scope, number = parse_key(entry.key)
    except ValueError as error:
        raise UnreadableTranscript(str(error)) from error
    if isinstance(entry, Header):
        # The file name confirms the key, so the key is right where the other fields contradict it.
        header = msgspec.structs.replace(entry, scope=scope, number=number)
    else:
        known = entry.state if isinstance(entry, Checkpoint) else entry
        header = header_for(entry.key, created=entries[0].ts, epoch=known.epoch, highest_number=known.highest_number)
    return [header, *(other for other in entries if not isinstance(other, Header))]


def header_for(key: str, *, created: datetime, epoch: int, highest_number: int) -> Header:
    """Return a header in place of one that is lost."""
    scope, number = parse_key(key)
    return Header(
        seq=1,
        ts=created,
        version=FORMAT,
        id=derived_id(key),
        key=key,
        scope=scope,
        number=number,
        created=created,
        agent=scope.split(":")[1] if ":" in scope else "",
        origin=None,  # No other entry has it.
        epoch=epoch,
        highest_number=highest_number,
    )
