"""The files behind an export and an import of a session. All methods block."""

import os
from pathlib import Path
from tempfile import mkstemp

import msgspec

from gateway.errors import Refused
from gateway.private_files import open_private, write_all
from gateway.sessions.entries import FORMAT, Header
from gateway.sessions.keys import parse_key
from gateway.sessions.session import advance, initial_state
from gateway.sessions.state import SessionState
from gateway.sessions.storage.codec import DamagedEntry, decode
from gateway.sessions.storage.transcript import lines_forwards, offset_before

# The prefix of the temporary files of imports.
IMPORT_PREFIX = ".arriving-"

BLOCK = 256 * 1024


class ExportFile:
    """A transcript that is read in blocks, up to the size that it had at the start.

    With `after`, the reading begins at a line not far before the first entry after that seq.
    """

    def __init__(self, path: Path, size: int, after: int = 0) -> None:
        self._file = os.fdopen(open_private(path), "rb")
        begin = self._file.seek(offset_before(self._file.fileno(), size, after) if after else 0)
        self._path = path
        self._left = size - begin
        self._rest = b""

    def lines(self) -> list[bytes]:
        """Return the next lines, newlines included; an empty list at the end."""
        while self._left > 0:
            block = self._file.read(min(BLOCK, self._left))
            if not block:
                raise OSError(f"{self._path} is shorter than it was")
            self._left -= len(block)
            whole, newline, self._rest = (self._rest + block).rpartition(b"\n")
            if newline:
                return [line + b"\n" for line in whole.split(b"\n")]
        last, self._rest = self._rest, b""
        return [last] if last else []

    def close(self) -> None:
        self._file.close()


class ImportFile:
    """A transcript that is being imported, under a temporary name until it is complete.

    `is_kept`: the file itself becomes the transcript. Otherwise a commit reads it, and it need not be durable.
    """

    def __init__(self, transcripts: Path, *, is_kept: bool) -> None:
        self._is_kept = is_kept
        self._descriptor, name = mkstemp(dir=transcripts, prefix=IMPORT_PREFIX)
        self.path = Path(name)

    def write(self, data: bytes) -> None:
        write_all(self._descriptor, data)

    def finish(self) -> tuple[Header, SessionState]:
        """Fsync the file and read its state. Raises `Refused` if it is not a session that can be imported."""
        if self._is_kept:
            os.fsync(self._descriptor)
        lines = lines_forwards(self.path)
        try:
            header = decode(next(lines, b""))
            scope, number = parse_key(header.key) if isinstance(header, Header) else ("", 0)
        except ValueError as error:  # `DamagedEntry` is one.
            raise Refused(_NOT_EXPORTED) from error
        if not isinstance(header, Header):
            raise Refused(_NOT_EXPORTED)
        if header.version > FORMAT:
            raise Refused(
                f"This session has format {header.version}, but this Gatehouse reads {FORMAT}. Update Gatehouse first."
            )
        header = msgspec.structs.replace(header, scope=scope, number=number)
        state = initial_state(header)
        for line in lines:
            try:
                state = advance(state, decode(line))
            except DamagedEntry:
                continue
        return header, msgspec.structs.replace(state, size=self.path.stat().st_size)

    def place(self, path: Path) -> None:
        """Give the file its final name. Raises `FileExistsError` rather than replace another file."""
        os.link(self.path, path, follow_symlinks=False)

    def close(self) -> None:
        os.close(self._descriptor)
        self.path.unlink(missing_ok=True)


_NOT_EXPORTED = "This is not an exported session: its first line is not a header. Export it again."
