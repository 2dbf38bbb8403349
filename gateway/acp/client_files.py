"""The files that a coding agent reads and writes through us: those of its workspace only.

The agent can change the workspace at any time, so no path is trusted: links are resolved first, and then no link is
followed. See `gateway/agent/toolbox/workspace.py`, which the file tools of our own agents use as well.
"""

import asyncio
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from gateway.agent.toolbox.workspace import not_resolved, open_path, parts_inside, replace_file
from gateway.agent.tools import ToolFailed
from gateway.errors import ClientRefused
from gateway.private_files import FILE_MODE, NotAFile
from gateway.sandbox.bubblewrap import ATTACHMENTS
from gateway.text import excerpt

MAX_FILE_BYTES = 10_000_000
_SKIPPED_FACTOR = 5
"""So many times the maximum may lie before the first line that is read."""
_CHUNK_BYTES = 65_536


class ClientFiles:
    """`workspace` is an absolute path without links. `attachments` are readable at `ATTACHMENTS`, as in the sandbox."""

    def __init__(
        self, workspace: Path, attachments: Path | None = None, *, max_file_bytes: int = MAX_FILE_BYTES
    ) -> None:
        self._workspace = workspace
        self._attachments = attachments
        self._max_bytes = max_file_bytes

    async def read_text_file(self, path: str, line: int | None = None, limit: int | None = None) -> str:
        """Return the text from `line` on (the first is 1), at most `limit` lines of it. Raises `ClientRefused`.

        A missing file is an empty one: agents read a file before they create it.
        """
        return await asyncio.to_thread(self._read, path, max(line or 1, 1), limit)

    async def write_text_file(self, path: str, content: str) -> None:
        """Replace the file atomically and keep its mode. Missing folders are created. Raises `ClientRefused`."""
        await asyncio.to_thread(self._write, path, content)

    def _read(self, path: str, line: int, limit: int | None) -> str:
        with _explain_errors(path):
            root, inner = self._place(path)
            try:
                descriptor = open_path(root, parts_inside(root, inner) or ["."], os.O_RDONLY)
            except FileNotFoundError:
                return ""
            with os.fdopen(descriptor, "rb") as file:
                _skip_lines(file, line - 1, within=self._max_bytes * _SKIPPED_FACTOR)
                content = _read_lines(file, limit, self._max_bytes)
            if len(content) > self._max_bytes:
                raise ClientRefused(f"That is more than {self._max_bytes} bytes. Read fewer lines.")
            try:
                text = content.decode()
            except UnicodeDecodeError:
                # With replacement characters, the agent would damage the file when it writes it back.
                raise ClientRefused(f"{excerpt(path, 200)!r} is not a text file in UTF-8.") from None
            if "\0" in text:
                raise ClientRefused(f"{excerpt(path, 200)!r} is a binary file.")
            return text

    def _write(self, path: str, content: str) -> None:
        with _explain_errors(path):
            data = content.encode()
            if len(data) > self._max_bytes:
                raise ClientRefused(f"That is too big: a file can have at most {self._max_bytes} bytes.")
            root, inner = self._place(path)
            if root != self._workspace:
                raise ClientRefused(f"The files in {ATTACHMENTS} cannot be changed.")
            *folders, name = parts_inside(root, inner) or [""]
            if not name:
                raise ClientRefused("That is the workspace itself, not a file.")
            if ".git" in {part.casefold() for part in (*folders, name)}:
                raise ClientRefused("Files in .git cannot be written. Use git commands.")
            folder = open_path(root, folders, os.O_DIRECTORY, creates=True)
            try:
                try:
                    mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
                except FileNotFoundError:
                    mode = stat.S_IFREG | FILE_MODE
                if not stat.S_ISREG(mode):
                    raise ClientRefused(f"{excerpt(path, 200)!r} exists, and is not a file.")
                replace_file(folder, name, data, mode=mode)
            finally:
                os.close(folder)

    def _place(self, path: str) -> tuple[Path, str]:
        """Return the folder that `path` has to be in, and the path from there."""
        given = PurePosixPath(path)
        if not given.is_absolute():
            raise ClientRefused(f"{excerpt(path, 200)!r} is not an absolute path.")
        if self._attachments is not None and given.is_relative_to(ATTACHMENTS):
            return not_resolved(self._attachments), str(given.relative_to(ATTACHMENTS))
        return self._workspace, path


@contextmanager
def _explain_errors(path: str) -> Iterator[None]:
    """Turn errors into `ClientRefused`, with the agent's own path and never with ours."""
    try:
        yield
    except ToolFailed as error:
        raise ClientRefused(str(error)) from error
    except NotAFile as error:
        raise ClientRefused(f"{excerpt(path, 200)!r} cannot be used. {error.strerror}.") from error
    except (OSError, RuntimeError, ValueError) as error:  # Not allowed, a loop of links, a NUL, a disk that is full.
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "that is not usable"
        raise ClientRefused(f"{excerpt(path, 200)!r} cannot be used: {reason}.") from error


def _skip_lines(file: BinaryIO, lines: int, *, within: int) -> None:
    """Skip whole lines, up to the end of the file."""
    while lines:
        if file.tell() > within:
            raise ClientRefused(f"Only lines in the first {within} bytes of a file can be read.")
        part = file.readline(_CHUNK_BYTES)
        if not part:
            return
        lines -= part.endswith(b"\n")


def _read_lines(file: BinaryIO, lines: int | None, max_bytes: int) -> bytes:
    """Return more than `max_bytes` if there is more."""
    if lines is None:
        return file.read(max_bytes + 1)
    content = bytearray()
    while lines > 0 and len(content) <= max_bytes and (part := file.readline(_CHUNK_BYTES)):
        content += part
        lines -= part.endswith(b"\n")
    return bytes(content)
