"""Whose words they are: what a model reads of a message that one of several people has said.

What the gateway itself says stands in square brackets. Whatever people write, and however they call themselves, it
cannot look like that: not like another's message, and not like a summary.
"""

import re
import unicodedata
from functools import lru_cache

from gateway.conversation import UserMessage
from gateway.text import excerpt

__all__ = ["escape_markers", "sanitize_name", "with_sender"]

_NAME_WIDTH = 64

# Any bracket that a model may take for ours, with our words behind it, whatever stands between them.
_OUR_MARK = re.compile(
    r"[\[\uFF3B\u3010\u3014\u27E6](?=\W*(?:message\W+from|summary\W+of\W+the\W+earlier))", re.IGNORECASE
)


def with_sender(message: UserMessage) -> str:
    """Return the text as the model reads it: below the name of the one who said it, where that has to be told."""
    if message.is_ours:
        return message.text
    text = escape_markers(message.text)
    if not message.sender and not message.sender_id:
        return text
    return f"{_head(message)}\n{text}"


def escape_markers(text: str) -> str:
    """Return `text` so that nothing in it looks as if the gateway had said it."""
    return _OUR_MARK.sub(r"\\\g<0>", text)


def _head(message: UserMessage) -> str:
    name, known_as = sanitize_name(message.sender), sanitize_name(message.sender_id)
    who = f'"{name}", id "{known_as}"' if name and known_as else f'"{name or known_as}"'
    return f"[message from {who}]"


@lru_cache(maxsize=1_024)  # Each turn asks, character by character.
def sanitize_name(name: str) -> str:
    """Return a name on one line, without anything invisible, and without quotes and brackets that could end it."""
    return excerpt("".join(map(_harmless, name)), _NAME_WIDTH)


def _harmless(character: str) -> str:
    category = unicodedata.category(character)
    if category[0] in "CZ":
        return " "
    return "" if category in {"Ps", "Pe", "Pi", "Pf"} or character in '"\\<>' else character
