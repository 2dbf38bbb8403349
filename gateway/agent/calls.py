"""Tool calls as they come in pieces; what cannot be run becomes a call that says so to the model."""

import json
import re
from dataclasses import dataclass, field

from gateway.agent.step import MAX_CALL_BYTES, TOO_MUCH_TO_CALL, new_call_id
from gateway.conversation import Json, ToolCall
from gateway.errors import ProviderFailed

__all__ = ["Pieces", "call_of"]

_USABLE_ID = re.compile(r"[A-Za-z0-9_-]{16,40}")
"""Shorter ones are counters that begin anew with each step; others are not taken by every API."""
_NO_JSON = "The arguments were not one whole JSON object. Send the call again, with arguments that are."


@dataclass(slots=True, kw_only=True)
class Pieces:
    """One call whose arguments come as pieces of JSON text."""

    id: str = ""
    name: str = ""
    _texts: list[str] = field(default_factory=list)
    _size: int = 0

    def add(self, text: str) -> None:
        self._size += len(text)
        if self._size > MAX_CALL_BYTES:
            raise ProviderFailed(TOO_MUCH_TO_CALL)
        self._texts.append(text)

    def whole(self) -> ToolCall:
        return call_of(self.id, self.name, "".join(self._texts))


def call_of(call_id: str, name: str, arguments: str) -> ToolCall:
    usable_id = call_id if _USABLE_ID.fullmatch(call_id) else new_call_id()
    try:
        parsed: Json = json.loads(arguments, parse_constant=_refuse) if arguments.strip() else {}
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        return ToolCall(id=usable_id, name=name, input={}, fault=_NO_JSON)
    return ToolCall(id=usable_id, name=name, input=parsed)


def _refuse(constant: str) -> None:
    raise ValueError(f"JSON has no {constant}")
