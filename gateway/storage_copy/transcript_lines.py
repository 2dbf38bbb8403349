"""The lines of a transcript that can become rows: entries in their order, each once, after a header."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from msgspec.structs import replace

from gateway.errors import Refused
from gateway.sessions.entries import Entry, Header
from gateway.sessions.session import advance, initial_state
from gateway.sessions.state import SessionState
from gateway.sessions.storage.codec import (
    DamagedEntry,
    NewerTranscript,
    UnreadableTranscript,
    decode,
    encode,
    names_session,
    refuse_newer,
    with_header,
)

RawLines = Callable[[], Iterator[bytes]]
"""Reads the lines of a transcript from its start."""


class TranscriptLines:
    """The usable lines of one transcript, which is read several times rather than held in memory.

    `name` is the file name of the transcript. Raises `UnreadableTranscript` if it is not the transcript of a session,
    and `Refused` if a newer version has written it.
    """

    def __init__(self, name: str, raw: RawLines) -> None:
        self._name = name
        self._raw = raw
        self.header, self._has_header = self._find_header()
        self.key = self.header.key
        self.left_out = 0
        """Lines that the last reading has left out."""

    def __iter__(self) -> Iterator[bytes]:
        return (line for _, line in self.entries())

    def entries(self) -> Iterator[tuple[Entry, bytes]]:
        self.left_out = 0
        last = 0
        if not self._has_header:
            last = self.header.seq
            yield self.header, encode(self.header)
        for line in self._raw():
            try:
                entry = decode(line)
                line.decode()  # Parts that this version does not know may be damaged.
            except (DamagedEntry, UnicodeDecodeError):
                self.left_out += 1
                continue
            if entry.seq <= last:
                self.left_out += 1
                continue
            last = entry.seq
            yield entry, line if line.endswith(b"\n") else line + b"\n"

    def state(self) -> SessionState:
        """Return the state after all lines."""
        state, size = initial_state(self.header), 0
        for number, (entry, line) in enumerate(self.entries()):
            size += len(line)
            if number > 0:
                state = advance(state, entry)
        return replace(state, size=size)

    def _find_header(self) -> tuple[Header, bool]:
        """Return the header, and whether it is in the transcript. One that is lost is reconstructed."""
        path = Path(self._name)
        for number, line in enumerate(self._raw()):
            if number == 0:
                try:
                    refuse_newer(path, line)
                except NewerTranscript as newer:
                    raise Refused(
                        f"Can't copy {self._name}: {newer}. Copy with that version. Nothing was changed."
                    ) from newer
            try:
                entry = decode(line)
            except DamagedEntry:
                continue
            if names_session([entry], path):
                (header, *_) = with_header([entry], path)
                assert isinstance(header, Header)  # noqa: S101 - `with_header` has put it there.
                return header, number == 0 and isinstance(entry, Header)
        raise UnreadableTranscript(f"{self._name} does not name its session")


def split_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a text in blocks, newlines included."""
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        yield from (line + b"\n" for line in lines)
    if rest:
        yield rest
