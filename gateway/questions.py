"""How a question about a tool call reads: what would be done is shown as it is, shortened, and in plain characters."""

import json
from datetime import timedelta

from gateway.conversation import Json, ToolCall
from gateway.text.clean import duration

__all__ = ["worded"]

_MAX_VALUE = 800
_MAX_NAME = 60
_MAX_ARGUMENTS = 12


def worded(call: ToolCall, *, timeout: float, asker: str = "") -> str:
    """Return the question as plain text. `asker` is named in a group, where not everybody may answer."""
    who = f"{_shown(asker, _MAX_NAME)} or an owner, answer" if asker else "Answer"
    return "\n".join(
        [
            f"May I use {_shown(call.name, _MAX_NAME)}?",
            *_arguments(call.input),
            f"{who} yes or no. Without an answer within {duration(timedelta(seconds=timeout))} it is not done.",
        ]
    )


def _arguments(given: dict[str, Json]) -> list[str]:
    lines = [
        f"  {_shown(name, _MAX_NAME)}: {_shown(json.dumps(value, ensure_ascii=False), _MAX_VALUE)}"
        for name, value in list(given.items())[:_MAX_ARGUMENTS]
    ]
    if len(given) > _MAX_ARGUMENTS:
        lines.append(f"  ... and {len(given) - _MAX_ARGUMENTS} more arguments")
    return lines


def _shown(text: str, limit: int) -> str:
    """Shorten in the middle, so that neither end can hide, and write out what would not be seen or changes the order.

    A model may have been talked into a call that looks like another: no line breaks, no text that runs backwards.
    """
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]} [... {len(text) - 2 * half:,} characters ...] {text[-half:]}"
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return f"\\u{ord(char):04x}"
