"""Which session a transcript says it holds, and in which format. Pure: what is read, and the file's name, in."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from gateway.sessions.entries import FORMAT, Activated, Checkpoint, Entry, Header
from gateway.sessions.names import file_name, parse_key

__all__ = [
    "Newer",
    "Outline",
    "Unreadable",
    "is_named",
    "refuse_newer",
    "with_header",
]


class Unreadable(Exception):
    """A file that is no transcript of the session it is named for."""


class Newer(Exception):
    """A transcript that only a newer version can read. `outline` has what can be told of it."""

    def __init__(self, outline: "Outline") -> None:
        super().__init__(f"it was written by a newer Gatehouse (format {outline.version}, this one reads {FORMAT})")
        self.outline = outline


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """What the header of any version tells."""

    version: int
    key: str
    agent: str = ""
    epoch: int = 0
    highest_number: int = 0


_outline_decoder = msgspec.json.Decoder(Outline)

_Naming = Header | Activated | Checkpoint
"""The entries that say to which session they belong."""


def refuse_newer(path: Path, head: bytes) -> None:
    """Raise `Newer` before anything is changed in a file whose format we do not know."""
    try:
        outline = _outline_decoder.decode(head)
    except (ValueError, RecursionError):
        return
    if outline.version > FORMAT and file_name(outline.key) == path.name:
        raise Newer(outline)


def is_named(path: Path, entries: Iterable[Entry]) -> bool:
    """Tell whether one of the entries says that this is the file of its session."""
    return any(isinstance(entry, _Naming) and file_name(entry.key) == path.name for entry in entries)


def with_header(entries: list[Entry], path: Path) -> list[Entry]:
    """Check that these entries are those of the session the file is named for, and put a lost header back."""
    for entry in entries:
        if isinstance(entry, _Naming) and file_name(entry.key) == path.name:
            header = _checked(entry) if isinstance(entry, Header) else _header_from(entry, entries)
            return [header, *(other for other in entries if not isinstance(other, Header))]
    raise Unreadable(f"{path.name} does not say which session it holds")


def _checked(header: Header) -> Header:
    """Believe the key, which the file's name vouches for, where the header contradicts itself."""
    scope, number = _parsed(header.key)
    return msgspec.structs.replace(header, scope=scope, number=number)


def _parsed(key: str) -> tuple[str, int]:
    try:
        return parse_key(key)
    except ValueError as trouble:
        raise Unreadable(str(trouble)) from trouble


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
