"""Export of a session as a document: Markdown for people, JSON for other programs. Pure.

The lossless export is the transcript itself: see `transfer.py`.
"""

import json
import re
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from datetime import UTC, datetime
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from gateway.conversation import Json, ToolCall
from gateway.sessions import entries
from gateway.sessions.entries import Entry
from gateway.sessions.history import visible_text
from gateway.sessions.session import SessionMeta
from gateway.text import excerpt, printable

NAME_WIDTH = 80

_BACKTICKS = re.compile("`+")
_HEADINGS = {"user": "User", "assistant": "Assistant", "tool_result": "Tool result", "gateway": "Gateway"}


class Statement(Struct, frozen=True, kw_only=True):
    """One message of the document. `role` is `user`, `assistant`, `tool_result` or `gateway`; `name` is a user's."""

    role: str
    content: str
    at: datetime
    name: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


class Export(Protocol):
    """Builds a document from the entries of one session, given in their order."""

    def feed(self, entry: Entry) -> str:
        """Return the next piece of the document, which is often empty."""

    def finish(self) -> str: ...


class StatementBuilder:
    """Combines entries to statements: the tool calls after an answer belong to it.

    Turns in `undone` are left out. Messages before a `clear` are included.
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
                # A model may call tools without a text before.
                answer = self._answer or Statement(role="assistant", content="", at=entry.ts)
                call = ToolCall(id=entry.tool_use_id, name=entry.name, input=entry.input)
                self._answer = replace(answer, tool_calls=(*answer.tool_calls, call))
            case entries.System():
                return [*self.finish(), Statement(role="gateway", content=entry.content, at=entry.ts)]
            case entries.SentFile():
                return [*self.finish(), Statement(role="assistant", content=f"[file: {entry.name}]", at=entry.ts)]
            case entries.ToolUpdate() if self._answer is not None:
                changed = [
                    replace(call, name=entry.name, input=entry.input) if call.id == entry.tool_use_id else call
                    for call in self._answer.tool_calls
                ]
                self._answer = replace(self._answer, tool_calls=tuple(changed))
            case entries.ToolResult():
                diffs = [f"{each.path}\n{each.diff}" for each in entry.diffs]
                text = "\n\n".join(filter(None, [entry.output, *diffs]))
                return [*self.finish(), Statement(role="tool_result", content=text, at=entry.ts)]
        return []

    def finish(self) -> list[Statement]:
        """Return the answer that was still waiting for tool calls."""
        answer, self._answer = self._answer, None
        return [answer] if answer and (answer.content or answer.tool_calls) else []


class MarkdownExport:
    """Markdown without control characters, so that it is safe to print in a terminal."""

    def __init__(self, meta: SessionMeta, undone: Iterable[str] = (), *, names_scope: bool = True) -> None:
        self._statements = StatementBuilder(undone)
        title = excerpt(meta.title, NAME_WIDTH) or f"Session {meta.number}"
        scope = f" of `{meta.scope}`" if names_scope else ""
        self._head = (
            f"# {title}\n\n"
            f"- Session {meta.number}{scope}, {meta.status}\n"
            f"- Agent: {meta.agent}\n"
            f"- Started {_moment(meta.created_at)}, last used {_moment(meta.last_accessed)}\n"
        )

    def feed(self, entry: Entry) -> str:
        return self._render(self._statements.feed(entry))

    def finish(self) -> str:
        return self._render(self._statements.finish())

    def _render(self, statements: list[Statement]) -> str:
        head, self._head = self._head, ""
        return printable(head + "".join(map(_markdown, statements)))


def _markdown(statement: Statement) -> str:
    name = excerpt(statement.name, NAME_WIDTH)
    who = f"{_HEADINGS[statement.role]} ({name})" if name else _HEADINGS[statement.role]
    text = _fenced(statement.content) if statement.role == "tool_result" else statement.content.strip("\n")
    blocks = [f"## {who}, {_moment(statement.at)}", *([text] if text else [])]
    for call in statement.tool_calls:
        arguments = json.dumps(call.input, ensure_ascii=False, indent=2)
        blocks.append(f"Called `{excerpt(call.name, NAME_WIDTH)}`:\n\n{_fenced(arguments, 'json')}")
    return "".join(f"\n{block}\n" for block in blocks)


def _fenced(text: str, language: str = "") -> str:
    """Put text into a fenced block. The fence is longer than any run of backticks in the text."""
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.strip(chr(10))}\n{fence}"


def _moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


class JsonExport:
    """One JSON object: session_id, channel, chat_id, created_at, last_accessed, messages.

    Its format has no role for the gateway's own sentences, so they are left out.
    """

    def __init__(self, meta: SessionMeta, undone: Iterable[str] = ()) -> None:
        self._meta = meta
        self._statements = StatementBuilder(undone)
        self._is_started = False
        self._separator = "\n    "

    def feed(self, entry: Entry) -> str:
        return self._start(entry) + self._render(self._statements.feed(entry))

    def finish(self) -> str:
        return f"{self._start(None)}{self._render(self._statements.finish())}\n  ]\n}}\n"

    def _start(self, first: Entry | None) -> str:
        """Return the fields before the messages, the first time. The header is the first entry."""
        if self._is_started:
            return ""
        self._is_started = True
        origin = first.origin if isinstance(first, entries.Header) else None
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

    def _render(self, statements: list[Statement]) -> str:
        pieces = []
        for statement in statements:
            if statement.role == "gateway":
                continue
            message: dict[str, Json] = {
                "role": statement.role,
                "content": statement.content,
                "timestamp": _iso(statement.at),
                "tool_calls": [
                    {"id": call.id, "name": call.name, "input": call.input} for call in statement.tool_calls
                ],
            }
            pieces.append(self._separator + _json(message))
            self._separator = ",\n    "
        return "".join(pieces)


def _json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()


async def export_pieces(export: Export, source: AsyncIterable[Entry]) -> AsyncIterator[str]:
    """Yield the document in pieces. At most one answer of the session is in memory at a time."""
    async for entry in source:
        if piece := export.feed(entry):
            yield piece
    yield export.finish()


async def undone_turns(source: AsyncIterable[Entry]) -> set[str]:
    """Return the turns that were undone. An export leaves them out, so it needs this pass first."""
    return {entry.undone async for entry in source if isinstance(entry, entries.Undo)}
