"""Parses session files of other gateways. Parts that it does not understand are counted and left out.

It knows one JSON object with `sessionKey` and `messages` (miniclaw), and JSON lines of which the first has the type
`session` (claw0). Everything else about the files may vary.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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
    steps: list[ImportedStep] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


def parse_session(data: bytes, modified: datetime) -> ForeignSession:
    """Parse a file that was last modified at `modified`. Raises `UnknownFormat` if it is not a session file."""
    text = data.decode("utf-8-sig", errors="replace")
    whole = _load_json(text)
    if isinstance(whole, dict) and isinstance(whole.get("messages"), list):
        key = whole.get("sessionKey") or whole.get("session_key") or whole.get("key") or ""
        created = _parse_time(whole.get("createdAt") or whole.get("created_at"))
        created = created or _parse_time(whole.get("updatedAt") or whole.get("updated_at")) or modified
        session = ForeignSession(maker="miniclaw", key=clean(str(key)), id="", created=created)
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
    for message in messages:
        if not isinstance(message, dict):
            session.left_out["malformed message"] += 1
            continue
        at = _parse_time(message.get("timestamp") or message.get("ts")) or at
        kind, content = message.get("role") or message.get("type"), message.get("content")
        match kind:
            case "tool_use":
                session.steps.append(_parse_tool_use(message, at))
            case "tool_result":
                session.steps.append(_parse_tool_result(message, at))
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


def _parse_tool_use(item: Item, at: datetime) -> ImportedToolUse:
    given = item.get("input")
    return ImportedToolUse(
        id=clean(str(item.get("tool_use_id") or item.get("id") or "")),
        name=clean(str(item.get("name") or "unknown")),
        input=given if isinstance(given, dict) else {},
        at=at,
    )


def _parse_tool_result(item: Item, at: datetime) -> ImportedToolResult:
    output = item.get("output", item.get("content", ""))
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    return ImportedToolResult(id=clean(str(item.get("tool_use_id") or "")), output=clean(text), at=at)


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
