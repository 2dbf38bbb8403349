"""Parses session files of other gateways. Parts that it does not understand are counted and left out.

It knows one JSON object with `messages`, and JSON lines of which the first has the type `session` (claw0). The object
names its chat by `channel` and `chat_id` (miniclaw, and our own export) or by a `sessionKey`. Everything else about
the files may vary.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from gateway.conversation import Json
from gateway.text import clean

_MIN_MILLISECONDS = 100_000_000_000
"""A number of seconds as large as this would be in the year 5138, so it must be milliseconds."""

Item = Mapping[str, Any]  # Any: JSON from another program.


class UnknownFormat(Exception):
    """The file is not a known session file. The text is the reason, as the end of a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedText:
    is_user: bool
    content: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedToolUse:
    id: str
    name: str
    input: dict[str, Json]
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedToolResult:
    id: str
    output: str
    at: datetime


ImportedStep = ImportedText | ImportedToolUse | ImportedToolResult


@dataclass(slots=True, kw_only=True)
class ForeignSession:
    """A session of another gateway. `left_out` counts the parts that were not understood, by kind."""

    maker: str
    key: str
    id: str
    created: datetime
    channel: str = ""
    """Set with `chat` if the file names its chat by these two, and has no key."""
    chat: str = ""
    steps: list[ImportedStep] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


def parse_session(data: bytes, modified: datetime) -> ForeignSession:
    """Parse a file that was last modified at `modified`. Raises `UnknownFormat` if it is not a session file."""
    text = data.decode("utf-8-sig", errors="replace")
    whole = _load_json(text)
    if isinstance(whole, dict) and isinstance(whole.get("messages"), list):
        key = whole.get("sessionKey") or whole.get("session_key") or whole.get("key") or ""
        began = whole.get("createdAt") or whole.get("created_at")
        used = whole.get("updatedAt") or whole.get("updated_at") or whole.get("last_accessed")
        session = ForeignSession(
            maker="miniclaw",
            key=clean(str(key)),
            id="",
            created=_parse_time(began) or _parse_time(used) or modified,
        )
        if not key and "chat_id" in whole:
            session.channel, session.chat = clean(str(whole.get("channel") or "")), clean(str(whole["chat_id"]))
            session.key = clean(str(whole.get("session_id") or f"{session.channel}_{session.chat}"))
            # A chat may have several sessions under the same key. They differ in their time.
            session.id = clean(str(began or ""))
        _add_messages(session, whole["messages"])
        return session
    lines = [_load_json(line) for line in text.split("\n") if line.strip()]
    items: list[Item] = [line for line in lines if isinstance(line, dict)]
    header = items[0] if items else {}
    if header.get("type") != "session":
        raise UnknownFormat("it is neither a JSON object with messages nor JSON lines that start with a session")
    key = clean(str(header.get("key") or header.get("sessionKey") or ""))
    created = _parse_time(header.get("created") or header.get("createdAt")) or modified
    session = ForeignSession(maker="claw0", key=key, id=clean(str(header.get("id") or "")), created=created)
    if len(items) < len(lines):
        session.left_out["broken line"] = len(lines) - len(items)
    _add_messages(session, items[1:])
    return session


def _load_json(text: str) -> Any:  # noqa: ANN401  # Any: JSON from another program.
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _add_messages(session: ForeignSession, messages: Iterable[object]) -> None:
    """Add the steps of all messages. A message has a `role` or a `type`, and its content may be a list of parts."""
    at = session.created
    # The calls of the last step that have no result yet. A result without an id belongs to the first of them.
    open_calls: list[str] = []
    for message in messages:
        if not isinstance(message, dict):
            session.left_out["malformed message"] += 1
            continue
        at = _parse_time(message.get("timestamp") or message.get("ts")) or at
        kind, content = message.get("role") or message.get("type"), message.get("content")
        match kind:
            case "tool_use":
                session.steps.append(_parse_tool_use(message, at))
            case "tool_result" | "tool":
                result = _parse_tool_result(message, at)
                if not result.id and open_calls:
                    result = replace(result, id=open_calls[0])
                if result.id in open_calls:
                    open_calls.remove(result.id)
                session.steps.append(result)
            case "assistant" if isinstance(calls := message.get("tool_calls"), list) and calls:
                if isinstance(content, str) and content.strip():
                    session.steps.append(ImportedText(is_user=False, content=clean(content), at=at))
                open_calls = _add_tool_calls(session, calls, at)
            case "user" | "assistant" if isinstance(content, list):
                for part in content:
                    match part:
                        case {"type": "text", "text": str(text)} if text.strip():
                            session.steps.append(ImportedText(is_user=kind == "user", content=clean(text), at=at))
                        case {"type": "tool_use"}:
                            session.steps.append(_parse_tool_use(part, at))
                        case {"type": "tool_result"}:
                            session.steps.append(_parse_tool_result(part, at))
                        case _:
                            session.left_out["unknown part"] += 1
            case "user" | "assistant" if isinstance(content, str) and content.strip():
                session.steps.append(ImportedText(is_user=kind == "user", content=clean(content), at=at))
            case "user" | "assistant":
                session.left_out["empty message"] += 1
            case "system":
                session.left_out["system message"] += 1
            case _:
                session.left_out["unknown message"] += 1


def _add_tool_calls(session: ForeignSession, calls: Iterable[object], at: datetime) -> list[str]:
    """Add the calls of one step, and return their ids. Results are matched by the id, so each call gets its own."""
    ids: list[str] = []
    for call in calls:
        if not isinstance(call, dict):
            session.left_out["malformed tool call"] += 1
            continue
        used = _parse_tool_use(call, at)
        if not used.id or used.id in ids:
            used = replace(used, id=f"import-{len(session.steps)}")
        ids.append(used.id)
        session.steps.append(used)
    return ids


def _parse_tool_use(item: Item, at: datetime) -> ImportedToolUse:
    """Parse a call as miniclaw, Anthropic or OpenAI write it. OpenAI has the arguments as a text of JSON."""
    function = item.get("function")
    item = {**item, **function} if isinstance(function, dict) else item
    given = item.get("input", item.get("arguments"))
    given = _load_json(given) if isinstance(given, str) else given
    return ImportedToolUse(
        id=clean(str(item.get("tool_use_id") or item.get("id") or "")),
        name=clean(str(item.get("name") or "unknown")),
        input=given if isinstance(given, dict) else {},
        at=at,
    )


def _parse_tool_result(item: Item, at: datetime) -> ImportedToolResult:
    output = item.get("output", item.get("content", ""))
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    call = item.get("tool_use_id") or item.get("tool_call_id") or ""
    return ImportedToolResult(id=clean(str(call)), output=clean(text), at=at)


def _parse_time(value: object) -> datetime | None:
    """Parse ISO 8601, or seconds or milliseconds since 1970. Returns None for anything else."""
    try:
        if isinstance(value, str):
            found = datetime.fromisoformat(value)
            return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value / 1000 if value >= _MIN_MILLISECONDS else value, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    return None
