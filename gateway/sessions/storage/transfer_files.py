"""Sessions that leave or arrive as lines of JSON, byte for byte as they are in the transcript."""

import os
from pathlib import Path
from tempfile import mkstemp

import msgspec

from gateway.errors import Refused
from gateway.private_files import write_all
from gateway.sessions.entries import FORMAT, Header
from gateway.sessions.keys import parse_key
from gateway.sessions.session import advance, initial_state
from gateway.sessions.state import SessionState
from gateway.sessions.storage.codec import DamagedEntry, decode
from gateway.sessions.storage.transcript import lines_forwards

__all__ = ["BLOCK", "IMPORT_PREFIX", "ExportFile", "ImportFile"]

IMPORT_PREFIX = ".arriving-"
"""How the names of unfinished imports start."""

BLOCK = 256 * 1024


class ExportFile:
    """An open transcript, read in blocks up to where it ended when this was asked for. Every method blocks."""

    def __init__(self, path: Path, size: int) -> None:
        self._file = path.open("rb")
        self._left = size
        self._rest = b""

    def lines(self) -> list[bytes]:
        """Return the next lines, newlines included; none at the end."""
        while self._left > 0:
            block = self._file.read(min(BLOCK, self._left))
            if not block:
                raise OSError(f"{self._file.name} is shorter than it was")
            self._left -= len(block)
            whole, newline, self._rest = (self._rest + block).rpartition(b"\n")
            if newline:
                return [line + b"\n" for line in whole.split(b"\n")]
        last, self._rest = self._rest, b""
        return [last] if last else []

    def close(self) -> None:
        self._file.close()


class ImportFile:
    """A transcript that is coming in, under a name of its own until it is whole. Every method blocks."""

    def __init__(self, transcripts: Path) -> None:
        self._descriptor, name = mkstemp(dir=transcripts, prefix=IMPORT_PREFIX)
        self._path = Path(name)

    def write(self, data: bytes) -> None:
        write_all(self._descriptor, data)

    def finish(self) -> tuple[Header, SessionState]:
        """Make it durable and add up what it says; `Refused` when it is no session that we can take in."""
        os.fsync(self._descriptor)
        lines = lines_forwards(self._path)
        header = _header(next(lines, b""))
        state = initial_state(header)
        for line in lines:
            try:
                state = advance(state, decode(line))
            except DamagedEntry:
                continue
        return header, msgspec.structs.replace(state, size=self._path.stat().st_size)

    def place(self, path: Path) -> None:
        """Give it its name, over no other."""
        os.link(self._path, path)

    def close(self) -> None:
        os.close(self._descriptor)
        self._path.unlink(missing_ok=True)


def _header(line: bytes) -> Header:
    try:
        header = decode(line)
    except DamagedEntry as damage:
        raise Refused("This is not an exported session: its first line is no header. Export it again.") from damage
    if not isinstance(header, Header) or not _is_key(header.key):
        raise Refused("This is not an exported session: its first line is no header. Export it again.")
    if header.version > FORMAT:
        raise Refused(
            f"This session has format {header.version}; update Gatehouse, which reads {FORMAT}, to import it."
        )
    scope, number = parse_key(header.key)
    return msgspec.structs.replace(header, scope=scope, number=number)


def _is_key(key: str) -> bool:
    try:
        parse_key(key)
    except ValueError:
        return False
    return True
