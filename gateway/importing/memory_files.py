"""Turns the memory files of other gateways into statements: each item or paragraph of Markdown is one."""

import re
from collections.abc import Iterable, Iterator
from datetime import date
from pathlib import Path

from gateway.importing.source_files import modified, read_text
from gateway.importing.values import LeftOut, MemoryFile, UnknownFormat

_MAX_CHARS = 1_000_000
_HEADING = re.compile(r"#{1,6}\s+(?P<title>.*?)\s*#*\s*")
_ITEM = re.compile(r"(?P<indent>\s*)(?:[-*+]|\d{1,4}[.)])\s+(?P<text>.*)")
_CHECKBOX = re.compile(r"\[[ xX]\]\s*")
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_DAY = re.compile(r"(\d{4})-?(\d{2})-?(\d{2})")
_PLACEHOLDER = re.compile(r"[*_]*\(?[*_]*\(.*\)[*_]*|\*[^*].*\*|_[^_].*_|[-=*_ ]+")
"""A line like "(your name)" or "*Edit this file ...*", or a rule: what a template has where nothing is known yet."""
_FIELD = re.compile(r"\**[^:*]{1,60}(?::\**|\**:)\s*(?P<value>.*)")
_WEAK_HEADINGS = frozenset({"memory", "long-term memory", "user", "user profile", "notes", "facts", "important"})
"""Headings that say nothing about the items below them."""


def read_memories(workspace: Path, paths: Iterable[Path], left_out: list[LeftOut]) -> Iterator[MemoryFile]:
    """Yield the memory files of a workspace that have statements. Add those that are damaged to `left_out`."""
    for path in paths:
        name = str(path.relative_to(workspace))
        try:
            if (found := read_memory(path, name=name)) is not None:
                yield found
        except UnknownFormat as error:
            left_out.append(LeftOut(what=name, why=str(error), is_damaged=True))


def read_memory(path: Path, *, name: str = "") -> MemoryFile | None:
    """Return the statements of a Markdown file; None if it has none. Raises `UnknownFormat`."""
    if not path.is_file():
        return None
    found = tuple(dict.fromkeys(statements(read_text(path)[:_MAX_CHARS])))
    return MemoryFile(name=name or path.name, statements=found, noted=day_of(path)) if found else None


def statements(text: str) -> Iterator[str]:
    """Yield the statements of a Markdown text. The heading above an item says what the item is about."""
    text = _COMMENT.sub("", _FRONT_MATTER.sub("", text.replace("\r\n", "\n")))
    heading = ""
    block: list[str] = []
    for line in [*text.split("\n"), ""]:
        title, item = _HEADING.fullmatch(line), _ITEM.fullmatch(line)
        if title or item or not line.strip():
            yield from _statement(block, heading)
            block = []
        if title:
            heading = title["title"].strip(" *_")
        elif item:
            block = [item["text"]]
        elif line.strip():
            block.append(line.strip())


def _statement(block: list[str], heading: str) -> Iterator[str]:
    text = " ".join(block).strip()
    if _CHECKBOX.match(text):
        if text.startswith("[ ]"):  # What was not chosen.
            return
        text = _CHECKBOX.sub("", text, count=1)
    field = _FIELD.fullmatch(text)
    value = field["value"] if field is not None else text
    if not text or not value or _PLACEHOLDER.fullmatch(value) or _PLACEHOLDER.fullmatch(text):
        return
    if heading and not _DAY.match(heading) and heading.casefold() not in _WEAK_HEADINGS:
        text = f"{heading}: {text}"
    yield text.replace("**", "")


def day_of(path: Path) -> str:
    """Return the day that the name of a file says, or that of its last change."""
    if found := _DAY.search(path.stem):
        try:
            return str(date(*map(int, found.groups())))
        except ValueError:
            pass
    return str(modified(path).date())
