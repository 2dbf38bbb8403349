"""`gatehouse sessions list` and `show`: which conversations there are, and what was said in one."""

import argparse
import asyncio
import json
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from textwrap import indent

import msgspec

from config import Settings
from gateway.archive import Listed, closing
from gateway.cli.sessions_archives import opened_archive
from gateway.cli.sessions_naming import find, unknown_scope
from gateway.cli.sessions_tail import Tail, transcript_path
from gateway.dialogue import Json
from gateway.errors import Refused
from gateway.sessions import Entry, Spoken, entries, shown
from gateway.sessions.encoding import Damaged, decode
from gateway.text import clean, excerpt, printable
from gateway.text.phrases import ago, count

__all__ = ["facts", "list_sessions", "show", "size", "table"]

POLL_INTERVAL = 0.2
_BATCH = 500
"""Rows whose columns are aligned together; more than these are never held at once."""
_TITLE_WIDTH = 40
_HEADINGS = ("SCOPE", "SESSION", "TITLE", "MESSAGES", "STATUS", "UPDATED", "SIZE")
_KILO = 1024


async def list_sessions(settings: Settings, options: argparse.Namespace) -> int:
    scope = None if options.scope is None else clean(options.scope)
    printer = _JsonList() if options.json else _Table(datetime.now(UTC))
    async with opened_archive(settings) as archive, closing(archive.sessions(scope)) as found:
        async for listed in found:
            printer.add(listed)
        if scope is not None and printer.is_empty:
            raise Refused(await unknown_scope(archive, scope))
    printer.finish()
    return 0


class _Table:
    def __init__(self, now: datetime) -> None:
        self._now = now
        self._batch: list[Listed] = []
        self.is_empty = True

    def add(self, listed: Listed) -> None:
        self.is_empty = False
        self._batch.append(listed)
        if len(self._batch) == _BATCH:
            self._print()

    def finish(self) -> None:
        if self.is_empty:
            print("There are no sessions yet.")
        self._print()

    def _print(self) -> None:
        if self._batch:
            # Sorting keeps the order within a scope, which is newest first.
            batch = sorted(self._batch, key=lambda listed: listed.meta.scope)
            print(table([_HEADINGS, *(_row(listed, self._now) for listed in batch)]))
            self._batch = []


class _JsonList:
    """One array, one session a line."""

    def __init__(self) -> None:
        self.is_empty = True

    def add(self, listed: Listed) -> None:
        print("[" if self.is_empty else ",", json.dumps(facts(listed)), sep="\n", end="")
        self.is_empty = False

    def finish(self) -> None:
        print("[]" if self.is_empty else "\n]")


def facts(listed: Listed) -> dict[str, Json]:
    described: dict[str, Json] = msgspec.to_builtins(listed.meta)
    return {**described, "is_active": listed.is_active}


def _row(listed: Listed, now: datetime) -> tuple[str, ...]:
    meta = listed.meta
    return (
        meta.scope,
        f"{'▸' if listed.is_active else ' '} {meta.number}",
        excerpt(meta.title, _TITLE_WIDTH) or "(empty)",
        str(meta.messages),
        meta.status.value,
        ago(meta.updated_at, now),
        size(meta.size),
    )


def size(number: int) -> str:
    if number < _KILO:
        return f"{number} B"
    amount, units = number / _KILO, ["KiB", "MiB", "GiB"]
    while amount >= _KILO and len(units) > 1:
        amount, units = amount / _KILO, units[1:]
    return f"{amount:.1f} {units[0]}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Align columns, whatever the width of their letters; nothing in it moves a terminal's cursor."""
    shown = [[printable(cell).replace("\n", " ").replace("\t", " ") for cell in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip(*shown, strict=True)]
    return "\n".join("  ".join(map(_padded, row, widths)).rstrip() for row in shown)


def _padded(cell: str, width: int) -> str:
    return cell + " " * (width - _width(cell))


def _width(text: str) -> int:
    """Count the columns that a terminal takes for `text`."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


async def show(settings: Settings, options: argparse.Namespace) -> int:
    """Print the last lines of a session; then, if asked, what is said from now on.

    The tail begins before the lines are asked for, so that nothing is missed in between; what comes twice is told once.
    """
    async with opened_archive(settings) as archive:
        listed = await find(archive, options.name, options.number)
        tail = Tail(transcript_path(settings.gateway.data_dir, listed.meta.key)) if options.follow else None
        said = await archive.lines(listed.meta.key, options.lines)
    if options.json and tail is None:
        print(json.dumps({"session": facts(listed), "lines": [_line_facts(spoken) for spoken in said]}, indent=2))
        return 0
    if not options.json:
        print(_title(listed))
    _print_all(said, as_json=options.json)
    if tail is not None:
        await _follow(tail, said, as_json=options.json)
    return 0


async def _follow(tail: Tail, said: Iterable[Spoken], *, as_json: bool) -> None:
    known = set(said)
    while True:
        lines = await asyncio.to_thread(tail.read)
        _print_all((spoken for spoken in _heard(lines) if spoken not in known), as_json=as_json)
        if not lines:
            await asyncio.sleep(POLL_INTERVAL)


def _heard(lines: Iterable[bytes]) -> Iterator[Spoken]:
    """Return what a person would see of new entries."""
    for line in lines:
        try:
            spoken = _spoken(decode(line))
        except Damaged:
            continue
        if spoken is not None and spoken.text:
            yield spoken


def _spoken(entry: Entry) -> Spoken | None:
    match entry:
        case entries.User():
            return Spoken(role="user", text=shown(entry), ts=entry.ts)
        case entries.Assistant():
            return Spoken(role="assistant", text=entry.content, ts=entry.ts)
        case entries.SentFile():
            return Spoken(role="assistant", text=f"[file: {entry.name}]", ts=entry.ts)
        case entries.Clear():
            return Spoken(role="gateway", text="The history was cleared.", ts=entry.ts)
        case entries.Undo():
            return Spoken(role="gateway", text="The last turn was taken back.", ts=entry.ts)
        case _:
            return None


def _print_all(lines: Iterable[Spoken], *, as_json: bool) -> None:
    for spoken in lines:
        print(json.dumps(_line_facts(spoken)) if as_json else _readable(spoken))
    sys.stdout.flush()


def _title(listed: Listed) -> str:
    meta = listed.meta
    title = excerpt(meta.title, 80) or "(empty)"
    return printable(
        f"Session {meta.number} of {meta.scope}\n"
        f"{title} · {count(meta.messages, 'message')} · {meta.status.value} · agent {meta.agent}"
    )


def _readable(spoken: Spoken) -> str:
    """Indent what was said, so that nobody can put words into another's mouth."""
    text = indent(printable(spoken.text).rstrip(), "    ")
    return f"\n{spoken.role}, {spoken.ts.astimezone():%Y-%m-%d %H:%M:%S}\n{text}"


def _line_facts(spoken: Spoken) -> dict[str, Json]:
    return {"role": spoken.role, "text": spoken.text, "at": spoken.ts.astimezone(UTC).isoformat()}
