"""Tools for workspace files: list, read, write, edit and search."""

import asyncio
import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from time import monotonic
from typing import BinaryIO

from gateway.agent.toolbox.workspace import explain_os_errors, open_inside, open_parent, replace_file
from gateway.agent.tools import ToolContext, ToolFailed, tool
from gateway.documents.conversion import DocumentUnreadable
from gateway.documents.identify import HEAD, is_document, is_html
from gateway.private_files import FILE_MODE, open_private
from gateway.sandbox.bubblewrap import ATTACHMENTS
from gateway.text import excerpt

_MAX_LISTED = 500
_MAX_SORTED = 20_000
_MAX_READ_BYTES = 48_000
"""With the line about the rest, it fits into the output of a tool."""
_MAX_SKIPPED_BYTES = 50_000_000
_CHUNK_BYTES = 65_536
_MAX_EDITED_BYTES = 2_000_000

_MAX_FOUND = 200
_MAX_SEARCHED_ENTRIES = 50_000
_MAX_SEARCHED_BYTES = 2_000_000
_MAX_DEPTH = 40
_SEARCH_TIMEOUT = 10.0
_MAX_LINE_CHARS = 200
_SKIPPED_FOLDERS = {".git", "node_modules", "__pycache__", ".venv"}


@tool(concurrent=True)
async def list_files(context: ToolContext, path: str = ".") -> str:
    """List a workspace folder."""

    def entry(folder: int, name: str) -> str:
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return f"{name} (just removed)"
        if stat.S_ISDIR(found.st_mode):
            return f"{name}/"
        return f"{name} ({found.st_size} bytes)" if stat.S_ISREG(found.st_mode) else name

    def run() -> str:
        with open_inside(context, path, os.O_DIRECTORY) as folder, os.scandir(folder) as found:
            names = sorted(each.name for each in islice(found, _MAX_SORTED))
            lines = [entry(folder, name) for name in names[:_MAX_LISTED]]
        if len(names) > _MAX_LISTED:
            lines.append(f"... and {len(names) - _MAX_LISTED} more. Use search_files to find one by its name.")
        if Path(path) == Path() and _has_attachments(context):
            lines.append(f"{ATTACHMENTS}/")
        return "\n".join(lines) or "The folder is empty."

    return await asyncio.to_thread(run)


def _has_attachments(context: ToolContext) -> bool:
    return context.attachments is not None and context.attachments.is_dir()


@tool(concurrent=True)
async def read_file(context: ToolContext, path: str, first_line: int = 1, first_page: int = 1) -> str:
    """Read a text file, PDF, DOCX, XLSX or EPUB."""
    # Not in the schema, which every request contains: models that count from 0 mean the start.
    first_line, first_page = max(1, first_line), max(1, first_page)
    html_charset: str | None = None

    def run() -> str | None:
        """Return None for a document."""
        nonlocal html_charset
        with open_inside(context, path) as descriptor:
            found = os.fstat(descriptor)
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                head = file.read(HEAD)
                if is_document(head):
                    return None
                # An agent may want to change HTML in its workspace, so it sees its source there.
                if is_html(head) and PurePosixPath(path).is_relative_to(ATTACHMENTS):
                    html_charset = ""
                    return None
                if first_page > 1:
                    raise ToolFailed(f"{path!r} is a text file without pages. Use first_line.")
                file.seek(0)
                _skip_lines(file, first_line - 1, path)
                content = file.read(_MAX_READ_BYTES)
                has_more = bool(file.peek(1))
        if b"\0" in content:
            raise ToolFailed(f"{path!r} is a binary file of {found.st_size} bytes and cannot be shown as text.")
        if not has_more:
            return content.decode(errors="replace")
        whole_lines, newline, _ = content.rpartition(b"\n")
        if not newline:
            return f"{content.decode(errors='replace')}\n[Cut: line {first_line} is longer than can be shown.]"
        next_line = first_line + whole_lines.count(b"\n") + 1
        return f"{whole_lines.decode(errors='replace')}\n[Cut: there is more. Go on with first_line={next_line}.]"

    def read_document() -> bytes:
        with open_inside(context, path) as descriptor, os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(context.documents.max_bytes + 1)

    if (text := await asyncio.to_thread(run)) is not None:
        return text
    if first_line > 1:
        raise ToolFailed(f"{path!r} is a document. Use first_page instead of first_line.")
    try:
        document = await context.documents.convert(
            partial(asyncio.to_thread, read_document),
            html_charset=html_charset,
            first_page=first_page,
            room=_MAX_READ_BYTES,
        )
    except DocumentUnreadable as reason:
        raise ToolFailed(f"{path!r} cannot be read as text. {reason}") from reason
    return f"{document.text.strip()}\n{document.rest()}".rstrip()


def _skip_lines(file: BinaryIO, lines: int, path: str) -> None:
    """Skip whole lines, up to a limit: a file may have no line break, or no end."""
    seen = 0
    while lines and file.tell() < _MAX_SKIPPED_BYTES:
        line = file.readline(_CHUNK_BYTES)
        if not line:
            raise ToolFailed(f"{path!r} has only {seen} lines.")
        if line.endswith(b"\n"):
            lines -= 1
            seen += 1
    if lines:
        raise ToolFailed(f"Line {seen + lines + 1} of {path!r} is too far down to be read with this tool.")


@tool
async def write_file(context: ToolContext, path: str, content: str) -> str:
    """Write a text file, and its folders."""
    data = content.encode()
    await asyncio.to_thread(_write, context, path, data)
    return f"Written: {len(data)} bytes."


@tool
async def edit_file(context: ToolContext, path: str, old: str, new: str, every: bool = False) -> str:  # noqa: FBT001, FBT002 - the model names it.
    """Replace the only `old` in a file, or every one."""
    if not old:
        raise ToolFailed("`old` is empty. Use write_file to write a file whole.")

    def run() -> str:
        with open_inside(context, path) as descriptor:
            seen = os.fstat(descriptor)
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                content = file.read(_MAX_EDITED_BYTES + 1)
        if len(content) > _MAX_EDITED_BYTES:
            raise ToolFailed(f"{path!r} is too big to be edited: at most {_MAX_EDITED_BYTES} bytes can be.")
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            raise ToolFailed(f"{path!r} is not a text file in UTF-8, so it cannot be edited.") from error
        before, after = old, new
        if "\r\n" in text and "\r\n" not in old:  # Models write \n even if the file has \r\n.
            before, after = old.replace("\n", "\r\n"), new.replace("\r\n", "\n").replace("\n", "\r\n")
        count = text.count(before)
        if not count:
            raise ToolFailed(f"`old` is not in {path!r}. Read the file and copy the text exactly, with its spaces.")
        if count > 1 and not every:
            raise ToolFailed(f"`old` is in {path!r} {count} times. Give more of the text around it, or set every=true.")
        if len(text) + count * (len(after) - len(before)) > _MAX_EDITED_BYTES:
            raise ToolFailed(f"{path!r} would become too big: at most {_MAX_EDITED_BYTES} bytes can be edited.")
        _write(context, path, text.replace(before, after).encode(), seen)
        return f"Replaced {count} time{'s' if count > 1 else ''}."

    return await asyncio.to_thread(run)


def _write(context: ToolContext, path: str, data: bytes, seen: os.stat_result | None = None) -> None:
    """Replace the file atomically. With `seen`, only if the file has not changed since."""
    with open_parent(context, path) as (folder, name), explain_os_errors(path):
        try:
            existing = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            existing = None
        if existing and not stat.S_ISREG(existing.st_mode):
            raise ToolFailed(f"{path!r} exists, and is not a file.")
        if seen and (existing is None or _version(existing) != _version(seen)):
            raise ToolFailed(f"{path!r} has been changed by another program. Read it again.")
        replace_file(folder, name, data, mode=existing.st_mode if existing else FILE_MODE)


def _version(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_mtime_ns, found.st_size


@tool(concurrent=True)
async def search_files(context: ToolContext, text: str = "", name: str = "*", path: str = ".") -> str:
    """Find files by name (*.py) and text in any case."""
    if "\n" in text:
        raise ToolFailed("The text must be within one line.")
    return await asyncio.to_thread(_Search(text, name).run, context, path)


class _Search:
    """One search. It ends in bounded time, however large the workspace is."""

    def __init__(self, text: str, name: str) -> None:
        self._text = text.casefold()
        self._name = name
        self._entries_left = _MAX_SEARCHED_ENTRIES
        self._found_left = _MAX_FOUND
        self._deadline = monotonic() + _SEARCH_TIMEOUT

    def run(self, context: ToolContext, path: str) -> str:
        lines: list[str] = []
        places = [path, *([ATTACHMENTS] if Path(path) == Path() and _has_attachments(context) else [])]
        for place in places:
            with open_inside(context, place, os.O_DIRECTORY) as folder:
                for line in self._search_folder(folder, Path(place), depth=0):
                    lines.append(line)
                    self._found_left -= 1
                    if self._is_over():
                        break
        if self._is_over():
            lines.append("[Not everything was searched. Narrow it down by path, name or text.]")
        return "\n".join(lines) or "Nothing was found."

    def _is_over(self) -> bool:
        return self._entries_left <= 0 or self._found_left <= 0 or monotonic() > self._deadline

    def _search_folder(self, folder: int, prefix: Path, *, depth: int) -> Iterator[str]:
        names: list[str] = []
        with os.scandir(folder) as found:
            for each in found:
                self._entries_left -= 1
                if self._is_over():
                    break
                names.append(each.name)
        for name in sorted(names):
            try:
                kind = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode  # Links are not followed.
            except OSError:  # Removed since it was listed.
                continue
            if self._is_over():
                return
            if stat.S_ISDIR(kind) and name not in _SKIPPED_FOLDERS and depth < _MAX_DEPTH:
                try:
                    child = open_private(name, os.O_DIRECTORY, directory=folder)
                except OSError:  # Not readable, removed, or replaced by a link.
                    continue
                try:
                    yield from self._search_folder(child, prefix / name, depth=depth + 1)
                finally:
                    os.close(child)
            elif stat.S_ISREG(kind) and fnmatch(name, self._name):
                yield from self._search_file(folder, prefix / name)

    def _search_file(self, folder: int, path: Path) -> Iterator[str]:
        if not self._text:
            yield str(path)
            return
        try:
            descriptor = open_private(path.name, directory=folder)
        except OSError:  # It may have been replaced by a pipe or a link since it was listed.
            return
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(_MAX_SEARCHED_BYTES + 1)
        if len(content) > _MAX_SEARCHED_BYTES or b"\0" in content:
            return
        for number, line in enumerate(content.decode(errors="replace").split("\n"), start=1):
            if self._text in line.casefold():
                yield f"{path}:{number}: {excerpt(line.strip(), _MAX_LINE_CHARS)}"
