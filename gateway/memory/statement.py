"""Statements, and the Markdown files that they are written in. Pure.

A statement is one list item: its number, its text, and where it comes from:

    - [12] Ada lives in Lisbon. (session 3, seq 14)

People edit these files, so anything else in them is kept as it is. An item, or a plain line, without a number is a
statement too if it has a word, and gets a number with the next change. Comments have what Gatehouse must know to add
nothing twice.
"""

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

_ITEM = re.compile(r"[-*+] +(?:\[(?P<number>[1-9][0-9]{0,8})\] ?)?(?P<text>.*)", re.DOTALL)
_PLACE = r"(?:session [1-9][0-9]{0,17}, seq [0-9]{1,18}|noted \d{4}-\d{2}-\d{2}|outline)"
_ORIGIN = re.compile(rf"\s*\(({_PLACE}(?:; {_PLACE})*)\)\s*", re.ASCII)
_ORIGIN_START = re.compile(r"\((?:session |noted |outline)")
_ARCHIVED = re.compile(
    r"<!-- archived: session (?P<number>[1-9][0-9]{0,17}) \((?P<id>[^ ()<>]{1,200})\) to seq (?P<seq>[0-9]{1,18})"
    r"(?P<outline>, outline)? -->"
)
_LAST_NUMBER = re.compile(r"<!-- last number: (?P<number>[1-9][0-9]{0,8}) -->")
_WORD = re.compile(r"""\w+|-(?=\d)|[^\w\s.,;:!?…"'`“”„«»‘’()\[\]{}*–—-]""")  # noqa: RUF001 - quotation marks.
"""A word, a sign such as + or €, or the minus of a number. Punctuation says nothing."""
_SAYING = re.compile(r"[^\W_]|[^\x00-\x7f\s]")
"""What a line of a person has at least. Rules, fences and the like have none of it."""
_UNUSABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_INDENT = "  "


class Source(Struct, frozen=True, order=True):
    """The message of a session that says something."""

    session: int
    seq: int

    def __str__(self) -> str:
        return f"session {self.session}, seq {self.seq}"


class Statement(Struct, frozen=True, kw_only=True):
    """One thing that is known. Without sources, an agent has noted it on request, or a person has written it."""

    number: int = 0
    """People name it by this number, which is never used again in its scope. 0: it has none yet."""
    text: str
    sources: tuple[Source, ...] = ()
    noted: str = ""
    """The day on which an agent has noted it, as in 2026-11-19."""
    is_outline: bool = False
    """It was made without a model: title, dates and first lines of a session."""
    file: str = ""
    """The name of its file."""

    @property
    def day(self) -> str:
        """The day on which it was written down; empty if that is not known."""
        return self.noted or (self.file[:10] if re.match(r"\d{4}-\d{2}-\d{2}", self.file) else "")

    @property
    def origin(self) -> str:
        """Where it comes from, as in `session 3, seq 14`; empty if that is not known."""
        places = [str(source) for source in self.sources]
        places += [f"noted {self.noted}"] if self.noted else []
        places += ["outline"] if self.is_outline else []
        return "; ".join(places)

    def rendered(self) -> str:
        number = f"[{self.number}] " if self.number else ""
        origin = f" ({self.origin})" if self.origin else ""
        return f"- {number}{self.text.replace(chr(10), chr(10) + _INDENT)}{origin}"


class Archived(Struct, frozen=True, kw_only=True):
    """Up to which entry a session is in the memory. `is_outline`: no model has read it yet."""

    session: int
    id: str
    seq: int
    is_outline: bool = False

    def rendered(self) -> str:
        outline = ", outline" if self.is_outline else ""
        return f"<!-- archived: session {self.session} ({self.id}) to seq {self.seq}{outline} -->"


class LastNumber(Struct, frozen=True):
    """The highest number of a scope, if its statement was forgotten: no number is used twice."""

    number: int

    def rendered(self) -> str:
        return f"<!-- last number: {self.number} -->"


class Other(Struct, frozen=True):
    """A line that means nothing to Gatehouse, such as a heading."""

    line: str

    def rendered(self) -> str:
        return self.line


Part = Statement | Archived | LastNumber | Other
"""A part of a memory file, in the order of the file."""


def parse(text: str, *, file: str = "") -> list[Part]:
    """Return the parts of a memory file. Every text has some."""
    parts: list[Part] = []
    for block in _blocks(text):
        first = block[0].strip()
        if found := _ARCHIVED.fullmatch(first):
            parts.append(
                Archived(
                    session=int(found["number"]),
                    id=found["id"],
                    seq=int(found["seq"]),
                    is_outline=found["outline"] is not None,
                )
            )
        elif found := _LAST_NUMBER.fullmatch(first):
            parts.append(LastNumber(int(found["number"])))
        elif first.startswith(("#", "<!--")) or not any(map(_SAYING.search, block)):
            parts += map(Other, block)
        else:
            parts.append(_statement(block, file))
    return parts


def _blocks(text: str) -> Iterator[list[str]]:
    """Group each item with the indented lines after it."""
    block: list[str] = []
    for raw in text.removesuffix("\n").split("\n"):
        line = raw.removesuffix("\r")
        if block and line.startswith(_INDENT) and line.strip() and block[0].strip():
            block.append(line.strip())
            continue
        if block:
            yield block
        block = [line]
    if block:
        yield block


def _statement(block: Sequence[str], file: str) -> Statement:
    content = "\n".join(block).strip()
    item = _ITEM.fullmatch(content)
    number = int(item["number"] or 0) if item is not None else 0
    text = item["text"].strip() if item is not None else content
    sources: list[Source] = []
    noted, is_outline = "", False
    start = max((found.start() for found in _ORIGIN_START.finditer(text)), default=-1)
    if start >= 0 and (origin := _ORIGIN.fullmatch(text, start)) is not None:
        text = text[:start].strip()
        for place in origin[1].split("; "):
            match place.replace(",", "").split(" "):
                case ["session", session, "seq", seq]:
                    sources.append(Source(int(session), int(seq)))
                case ["noted", day]:
                    noted = day
                case _:
                    is_outline = True
    return Statement(number=number, text=text, sources=tuple(sources), noted=noted, is_outline=is_outline, file=file)


def render(parts: Sequence[Part]) -> str:
    return "".join(f"{part.rendered()}\n" for part in parts)


def clean(text: str) -> str:
    """Return a text as a statement can have it: without empty lines, and nothing in it is taken for structure."""
    lines = [line.strip() for line in _UNUSABLE.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r", "\n")).split("\n")]
    return "\n".join(filter(None, lines))


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text, for comparisons. Statements with the same words are the same."""
    return tuple(_WORD.findall(text.casefold())) or (text,)
