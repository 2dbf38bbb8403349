"""A session as a document: Markdown for people, JSON for other programs. Pure: entries in, text out, piece by piece.

The lossless form is the transcript itself, line by line, and needs nothing from here.
"""

import json
import re
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from gateway.conversation import Json, ToolCall
from gateway.sessions import entries
from gateway.sessions.entries import Entry
from gateway.sessions.history import visible_text
from gateway.sessions.session import SessionMeta
from gateway.text import excerpt, printable

__all__ = [
    "Export",
    "JsonExport",
    "MarkdownExport",
    "Statement",
    "StatementBuilder",
    "export_pieces",
    "export_text",
    "undone_turns",
]

_BACKTICKS = re.compile("`+")
_HEADINGS = {"user": "User", "assistant": "Assistant", "tool_result": "Tool result"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What was said in one go; `role` is `user`, `assistant` or `tool_result`, and `name` who a user goes by."""

    role: str
    content: str
    at: datetime
    name: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


class Export(Protocol):
    """Makes a document from the entries of one session, fed in their order."""

    def feed(self, entry: Entry) -> str:
        """Return the next piece of the document; often there is none yet."""

    def finish(self) -> str: ...


class StatementBuilder:
    """Puts entries together to what was said: the tool calls behind an answer belong to it.

    Turns in `undone` are left out; what came before a `clear` stays in.
    """

    def __init__(self, undone: Iterable[str] = ()) -> None:
        self._undone = frozenset(undone)
        self._answer: Statement | None = None

    def feed(self, entry: Entry) -> list[Statement]:
        if entry.turn in self._undone:
            return []
        match entry:
            case entries.User():
                said = Statement(role="user", content=visible_text(entry), at=entry.ts, name=entry.sender_name)
                return [*self.finish(), said]
            case entries.Assistant():
                before = self.finish()
                self._answer = Statement(role="assistant", content=entry.content, at=entry.ts)
                return before
            case entries.ToolUse():
                self._add_call(entry)
            case entries.SentFile():
                return [*self.finish(), Statement(role="assistant", content=f"[file: {entry.name}]", at=entry.ts)]
            case entries.ToolResult():
                return [*self.finish(), Statement(role="tool_result", content=entry.output, at=entry.ts)]
        return []

    def finish(self) -> list[Statement]:
        """Return the answer that was still open for tool calls."""
        answer, self._answer = self._answer, None
        return [answer] if answer and (answer.content or answer.tool_calls) else []

    def _add_call(self, entry: entries.ToolUse) -> None:
        answer = self._answer or Statement(role="assistant", content="", at=entry.ts)
        call = ToolCall(id=entry.tool_use_id, name=entry.name, input=entry.input)
        self._answer = replace(answer, tool_calls=(*answer.tool_calls, call))


class MarkdownExport:
    """For people; it holds nothing that a terminal would obey."""

    def __init__(self, meta: SessionMeta, undone: Iterable[str] = (), *, names_scope: bool = True) -> None:
        self._statements = StatementBuilder(undone)
        self._head: str | None = _heading(meta, names_scope=names_scope)

    def feed(self, entry: Entry) -> str:
        return self._written(self._statements.feed(entry))

    def finish(self) -> str:
        return self._written(self._statements.finish())

    def _written(self, statements: list[Statement]) -> str:
        head, self._head = self._head or "", None
        return printable(head + "".join(map(_markdown, statements)))


class JsonExport:
    """One object: session_id, channel, chat_id, created_at, last_accessed, messages."""

    def __init__(self, meta: SessionMeta, undone: Iterable[str] = ()) -> None:
        self._meta = meta
        self._statements = StatementBuilder(undone)
        self._has_begun = False
        self._separator = "\n    "

    def feed(self, entry: Entry) -> str:
        head = "" if self._has_begun else self._begin(entry)
        return head + self._written(self._statements.feed(entry))

    def finish(self) -> str:
        head = "" if self._has_begun else self._begin(None)
        return f"{head}{self._written(self._statements.finish())}\n  ]\n}}\n"

    def _begin(self, entry: Entry | None) -> str:
        self._has_begun = True
        origin = entry.origin if isinstance(entry, entries.Header) else None
        channel, chat = (origin.channel, origin.chat_id) if origin else ("unknown", self._meta.scope)
        facts = {
            "session_id": f"{channel}_{chat}",
            "channel": channel,
            "chat_id": chat,
            "created_at": _iso(self._meta.created_at),
            "last_accessed": _iso(self._meta.last_accessed),
        }
        fields = "".join(f'  "{name}": {_json(value)},\n' for name, value in facts.items())
        return f'{{\n{fields}  "messages": ['

    def _written(self, statements: list[Statement]) -> str:
        pieces = []
        for statement in statements:
            pieces.append(self._separator + _json(_message(statement)))
            self._separator = ",\n    "
        return "".join(pieces)


async def export_pieces(export: Export, source: AsyncIterable[Entry]) -> AsyncIterator[str]:
    """Yield the document of a session piece by piece, holding no more of it than one answer."""
    async for entry in source:
        if piece := export.feed(entry):
            yield piece
    yield export.finish()


def export_text(export: Export, source: Iterable[Entry]) -> str:
    """Return the whole document."""
    return "".join([*map(export.feed, source), export.finish()])


async def undone_turns(source: AsyncIterable[Entry]) -> set[str]:
    """Return the turns that were taken back, which only who has read to the end can know."""
    return {entry.undone async for entry in source if isinstance(entry, entries.Undo)}


def _heading(meta: SessionMeta, *, names_scope: bool) -> str:
    title = excerpt(meta.title, 80) or f"Session {meta.number}"
    scope = f" of `{meta.scope}`" if names_scope else ""
    return (
        f"# {title}\n\n"
        f"- Session {meta.number}{scope}, {meta.status}\n"
        f"- Agent: {meta.agent}\n"
        f"- Started {_moment(meta.created_at)}, last used {_moment(meta.last_accessed)}\n"
    )


def _markdown(statement: Statement) -> str:
    name = excerpt(statement.name, 80)
    who = f"{_HEADINGS[statement.role]} ({name})" if name else _HEADINGS[statement.role]
    text = _fenced(statement.content) if statement.role == "tool_result" else statement.content.strip("\n")
    blocks = [f"## {who}, {_moment(statement.at)}", *([text] if text else []), *map(_call, statement.tool_calls)]
    return "".join(f"\n{block}\n" for block in blocks)


def _call(call: ToolCall) -> str:
    arguments = json.dumps(call.input, ensure_ascii=False, indent=2)
    return f"Called `{excerpt(call.name, 80)}`:\n\n{_fenced(arguments, 'json')}"


def _fenced(text: str, language: str = "") -> str:
    """Put text between fences that it cannot end by itself."""
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.strip(chr(10))}\n{fence}"


def _message(statement: Statement) -> dict[str, Json]:
    return {
        "role": statement.role,
        "content": statement.content,
        "timestamp": _iso(statement.at),
        "tool_calls": [{"id": call.id, "name": call.name, "input": call.input} for call in statement.tool_calls],
    }


def _json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()


def _moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
