"""Reads the session files of other gateways, tolerantly: what cannot be understood is counted, and left out.

Known are one JSON object with `sessionKey` and `messages` (miniclaw), and JSON lines of which the first is of the type
`session` (claw0). Nothing is taken for granted but that.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from gateway.dialogue import Json
from gateway.text import clean

__all__ = ["Foreign", "Said", "ToolAsked", "ToolSaid", "Unreadable", "read"]

_MILLISECONDS_FROM = 100_000_000_000
"""A number of seconds as large as this would be in the year 5138, so it counts milliseconds."""

Item = Mapping[str, Any]  # Any: JSON of somebody else.


class Unreadable(Exception):
    """The file is no session that is known here; its text says why, as the end of a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    is_user: bool
    content: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAsked:
    id: str
    name: str
    input: dict[str, Json]
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSaid:
    id: str
    output: str
    at: datetime


@dataclass(slots=True, kw_only=True)
class Foreign:
    """A session of another gateway. `left_out` says what was not understood, and how often."""

    maker: str
    key: str
    id: str
    created: datetime
    steps: list[Said | ToolAsked | ToolSaid] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


def read(data: bytes, changed: datetime) -> Foreign:
    """Understand one file, last `changed` then; `Unreadable` when it is none that we know."""
    text = data.decode("utf-8-sig", errors="replace")
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        whole = None
    if isinstance(whole, dict) and isinstance(whole.get("messages"), list):
        return _from_object(whole, changed)
    return _from_lines(text, changed)


def _from_object(whole: Item, changed: datetime) -> Foreign:
    key = whole.get("sessionKey") or whole.get("session_key") or whole.get("key") or ""
    begun = _time(whole.get("createdAt") or whole.get("created_at"))
    at = begun or _time(whole.get("updatedAt") or whole.get("updated_at")) or changed
    found = Foreign(maker="miniclaw", key=clean(str(key)), id="", created=at)
    _take(found, whole["messages"])
    return found


def _from_lines(text: str, changed: datetime) -> Foreign:
    items, broken = _items(text)
    header = items[0] if items else {}
    if header.get("type") != "session":
        raise Unreadable("it is neither one JSON object with messages, nor JSON lines that begin with a session")
    key = clean(str(header.get("key") or header.get("sessionKey") or ""))
    at = _time(header.get("created") or header.get("createdAt")) or changed
    found = Foreign(maker="claw0", key=key, id=clean(str(header.get("id") or "")), created=at)
    if broken:
        found.left_out["broken line"] = broken
    _take(found, items[1:])
    return found


def _items(text: str) -> tuple[list[Item], int]:
    items: list[Item] = []
    broken = 0
    for line in filter(str.strip, text.split("\n")):
        try:
            item = json.loads(line)
        except (ValueError, RecursionError):
            item = None
        if isinstance(item, dict):
            items.append(item)
        else:
            broken += 1
    return items, broken


def _take(found: Foreign, messages: Iterable[object]) -> None:
    at = found.created
    for message in messages:
        if not isinstance(message, dict):
            found.left_out["misshapen message"] += 1
            continue
        at = _time(message.get("timestamp") or message.get("ts")) or at
        steps = list(_steps(found, message, at))
        found.steps += steps


def _steps(found: Foreign, message: Item, at: datetime) -> Iterator[Said | ToolAsked | ToolSaid]:
    """Yield what one message says. A message has a `role` or a `type`, and its content may be a list of such again."""
    kind = message.get("role") or message.get("type")
    content = message.get("content")
    match kind:
        case "tool_use":
            yield _asked(message, at)
        case "tool_result":
            yield _told(message, at)
        case "user" | "assistant" if isinstance(content, list):
            yield from _blocks(found, content, at, is_user=kind == "user")
        case "user" | "assistant" if isinstance(content, str) and content.strip():
            yield Said(is_user=kind == "user", content=clean(content), at=at)
        case "user" | "assistant":
            found.left_out["empty message"] += 1
        case "system":
            found.left_out["system message"] += 1
        case _:
            found.left_out["unknown message"] += 1


def _blocks(
    found: Foreign, blocks: list[object], at: datetime, *, is_user: bool
) -> Iterator[Said | ToolAsked | ToolSaid]:
    for block in blocks:
        match block:
            case {"type": "text", "text": str(text)} if text.strip():
                yield Said(is_user=is_user, content=clean(text), at=at)
            case {"type": "tool_use"}:
                yield _asked(cast("Item", block), at)
            case {"type": "tool_result"}:
                yield _told(cast("Item", block), at)
            case _:
                found.left_out["unknown part"] += 1


def _asked(item: Item, at: datetime) -> ToolAsked:
    given = item.get("input")
    return ToolAsked(
        id=clean(str(item.get("tool_use_id") or item.get("id") or "")),
        name=clean(str(item.get("name") or "unknown")),
        input=given if isinstance(given, dict) else {},
        at=at,
    )


def _told(item: Item, at: datetime) -> ToolSaid:
    output = item.get("output", item.get("content", ""))
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    return ToolSaid(id=clean(str(item.get("tool_use_id") or "")), output=clean(text), at=at)


def _time(value: object) -> datetime | None:
    """Read ISO 8601, or seconds or milliseconds since 1970; None for anything else."""
    try:
        if isinstance(value, str):
            found = datetime.fromisoformat(value)
            return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value / 1000 if value >= _MILLISECONDS_FROM else value, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    return None
