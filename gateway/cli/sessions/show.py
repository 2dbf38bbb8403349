"""`gatehouse sessions list` prints a table of sessions, and `show` prints and follows one of them."""

import argparse
import asyncio
import json
import os
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing, closing
from datetime import UTC, datetime
from pathlib import Path
from textwrap import indent
from typing import Any, BinaryIO

import msgspec

from config import Settings, StorageEngine, StorageSettings
from gateway.admin.archive import open_archive
from gateway.admin.session_routes import ListedSession
from gateway.cli.common import EXIT_OK
from gateway.cli.sessions.names import find_scope, find_session
from gateway.conversation import Json
from gateway.errors import Refused
from gateway.private_files import open_private
from gateway.sessions import VisibleLine, entries
from gateway.sessions.history import visible_line
from gateway.sessions.keys import file_name
from gateway.sessions.storage.codec import DamagedEntry, decode
from gateway.sessions.storage.reader import open_reader
from gateway.sessions.storage.transcript import end_of_last_line
from gateway.text import clean, excerpt, printable
from gateway.text.plain import ago, count, in_bytes, local_time

POLL_INTERVAL = 0.2
_ROWS_AT_ONCE = 500
"""Rows that are aligned together. The table never holds more than these in memory."""
_TITLE_WIDTH = 40
_HEADINGS = ("SCOPE", "SESSION", "TITLE", "MESSAGES", "STATUS", "UPDATED", "SIZE")
_TAIL_BYTES = 256 * 1024
"""`Tail.read` returns about this many bytes at once."""


async def list_sessions(settings: Settings, options: argparse.Namespace) -> int:
    scope = None if options.scope is None else clean(options.scope)
    empty = "No archived sessions." if options.archived else "No sessions yet."
    printer = _JsonPrinter() if options.json else _TablePrinter(datetime.now(UTC), empty)
    async with open_archive(settings) as archive:
        if scope is not None:
            scope = await find_scope(archive, scope)
        async with aclosing(archive.sessions(scope, are_archived=options.archived)) as found:
            async for listed in found:
                printer.add(listed)
    printer.finish()
    return EXIT_OK


class _TablePrinter:
    def __init__(self, now: datetime, empty: str) -> None:
        self._now = now
        self._empty = empty
        self._rows: list[ListedSession] = []
        self.is_empty = True

    def add(self, listed: ListedSession) -> None:
        self.is_empty = False
        self._rows.append(listed)
        if len(self._rows) == _ROWS_AT_ONCE:
            self._print()

    def finish(self) -> None:
        if self.is_empty:
            print(self._empty)
        self._print()

    def _print(self) -> None:
        if not self._rows:
            return
        table = [_HEADINGS]
        # Sorting is stable, so the sessions of a scope stay in their order, newest first.
        for listed in sorted(self._rows, key=lambda listed: listed.meta.scope):
            meta = listed.meta
            marker = "▸" if listed.is_active else " "
            title = excerpt(meta.title, _TITLE_WIDTH) or "(empty)"
            updated, size = ago(meta.updated_at, self._now), in_bytes(meta.size)
            row = (meta.scope, f"{marker} {meta.number}", title, str(meta.messages), meta.status_word, updated, size)
            table.append(row)
        print(format_table(table))
        self._rows = []


class _JsonPrinter:
    """Prints one array, with a session on each line."""

    def __init__(self) -> None:
        self.is_empty = True

    def add(self, listed: ListedSession) -> None:
        print("[" if self.is_empty else ",", json.dumps(_session_as_json(listed)), sep="\n", end="")
        self.is_empty = False

    def finish(self) -> None:
        print("[]" if self.is_empty else "\n]")


def _session_as_json(listed: ListedSession) -> dict[str, Json]:
    described: dict[str, Json] = msgspec.to_builtins(listed.meta)
    return {**described, "is_active": listed.is_active, "is_archived": listed.is_archived}


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Align the columns, also with wide and combining characters. Removes control characters."""
    cells = [[printable(cell).replace("\n", " ").replace("\t", " ") for cell in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        padded = [cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def _width(text: str) -> int:
    """Return the number of terminal columns that `text` takes."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


async def show_session(settings: Settings, options: argparse.Namespace) -> int:
    """Print the last messages of a session, and with `--follow` new ones until interrupted."""
    async with open_archive(settings) as archive:
        listed = await find_session(archive, options.name, options.number)
        tail = None
        if options.follow:
            # 1. Remember the present end of the transcript.
            # 2. Read the last messages. Some of them may be behind that end already.
            # 3. Follow from that end, and skip messages that step 2 has printed. So none is lost.
            tail = await asyncio.to_thread(open_tail, settings, listed.meta.key)
        messages = await archive.lines(listed.meta.key, options.lines)
    if options.json and tail is None:
        lines = [_message_as_json(message) for message in messages]
        print(json.dumps({"session": _session_as_json(listed), "lines": lines}, indent=2))
        return EXIT_OK
    if not options.json:
        meta = listed.meta
        title = excerpt(meta.title, 80) or "(empty)"
        facts = f"{title} · {count(meta.messages, 'message')} · {meta.status_word} · agent {meta.agent}"
        print(printable(f"Session {meta.number} of {meta.scope}\n{facts}"))
    _print_messages(messages, as_json=options.json)
    known = set(messages)
    while tail is not None:
        new = await asyncio.to_thread(tail.read)
        _print_messages((message for message in _decode(new) if message not in known), as_json=options.json)
        if not new:
            await asyncio.sleep(POLL_INTERVAL)
    return EXIT_OK


def open_tail(settings: Settings, key: str) -> "Tail | RowTail":
    if settings.storage.engine is StorageEngine.FILES:
        return Tail(settings.gateway.data_dir / "sessions" / "transcripts" / file_name(key))
    return RowTail(settings.storage, key)


class RowTail:
    """Returns the lines that are added to a session in a database after its creation. Every method blocks."""

    def __init__(self, storage: StorageSettings, key: str) -> None:
        self._storage = storage
        self._key = key
        ((self._seq,),) = self._query("SELECT max(seq) FROM entry WHERE session = ?", key)
        if self._seq is None:
            raise Refused("The session has been deleted.")

    def read(self) -> list[bytes]:
        """Return the next lines; an empty list if there are none."""
        found = self._query(
            "SELECT seq, line FROM entry WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?",
            *(self._key, self._seq, _ROWS_AT_ONCE),
        )
        if found:
            self._seq = found[-1][0]
        elif not self._query("SELECT 1 FROM session WHERE key = ?", self._key):
            raise Refused("The session has been deleted.")
        return [line.encode() for _, line in found]

    def _query(self, sql: str, *parameters: object) -> list[Any]:  # Any: the types of the columns.
        # A connection for each read: `asyncio.to_thread` calls this in different threads.
        try:
            with closing(open_reader(self._storage)) as connection:
                return connection.execute(sql, parameters).fetchall()
        except OSError as error:
            raise Refused(f"Can't read the transcript: {error.strerror}.") from error


class Tail:
    """Returns the lines that are appended to a transcript after its creation. Every method blocks.

    It only reads, and without the lock, so a daemon can start and stop at any time. It opens the file for each read,
    because Gatehouse replaces a damaged transcript by a new file of the same name.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._open() as file:
            size = os.fstat(file.fileno()).st_size
            self._at = end_of_last_line(file.fileno(), size)  # Without a line that is being written.

    def read(self) -> list[bytes]:
        """Return the next complete lines; an empty list if there are none."""
        lines: list[bytes] = []
        taken = 0
        with self._open() as file:
            # A repair may have cut the file.
            self._at = min(self._at, os.fstat(file.fileno()).st_size)
            file.seek(self._at)
            for line in file:
                if not line.endswith(b"\n") or taken > _TAIL_BYTES:
                    break
                lines.append(line)
                taken += len(line)
        self._at += taken
        return lines

    def _open(self) -> BinaryIO:
        try:
            return os.fdopen(open_private(self._path), "rb")
        except FileNotFoundError as error:
            raise Refused("The session has been deleted.") from error
        except OSError as error:
            raise Refused(f"Can't read the transcript: {error.strerror}.") from error


def _decode(lines: Iterable[bytes]) -> Iterator[VisibleLine]:
    """Yield the visible messages among new lines of a transcript."""
    for line in lines:
        try:
            entry = decode(line)
        except DamagedEntry:
            continue
        message: VisibleLine | None
        match entry:
            case entries.Clear():
                message = VisibleLine(role="gateway", text="The history was cleared.", ts=entry.ts)
            case entries.Undo():
                message = VisibleLine(role="gateway", text="The last turn was undone.", ts=entry.ts)
            case _:
                message = visible_line(entry)
        if message is not None:
            yield message


def _print_messages(messages: Iterable[VisibleLine], *, as_json: bool) -> None:
    for message in messages:
        if as_json:
            print(json.dumps(_message_as_json(message)))
        else:
            # The text is indented, so that a message cannot imitate the heading of another message.
            text = indent(printable(message.text).rstrip(), "    ")
            print(f"\n{message.role}, {local_time(message.ts)}\n{text}")
    sys.stdout.flush()


def _message_as_json(message: VisibleLine) -> dict[str, Json]:
    return {"role": message.role, "text": message.text, "at": message.ts.astimezone(UTC).isoformat()}
