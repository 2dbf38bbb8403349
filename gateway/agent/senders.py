"""Marks the sender of a message for the model, so that no one can impersonate another person or the gateway.

The gateway's own words are in square brackets. Text and names that people write cannot look like them: neither like
another person's message nor like a summary or the prompt of a schedule.
"""

import re
import unicodedata
from functools import lru_cache

from gateway.conversation import Message, UserMessage
from gateway.text import excerpt

_MAX_NAME_CHARS = 64

# Any bracket that a model may take for ours, followed by our words, with any punctuation between them.
_OUR_MARKER = re.compile(
    r"[\[\uFF3B\u3010\u3014\u27E6](?=\W*(?:message\W+from|summary\W+of\W+the\W+earlier|prompt\W+of\W+schedule))",
    re.IGNORECASE,
)


def with_sender(message: UserMessage) -> str:
    """Return the text as the model reads it: below its sender's name, if the message has one."""
    if message.is_ours:
        return message.text
    text = escape_markers(message.text)
    if message.schedule:
        maker = f', set by "{sanitize_name(message.sender)}"' if message.sender else ""
        return f"[prompt of {sanitize_name(message.schedule)}{maker}; no person is writing now]\n{text}"
    if not message.sender and not message.sender_id:
        return text
    name, sender_id = sanitize_name(message.sender), sanitize_name(message.sender_id)
    sender = f'"{name}", id "{sender_id}"' if name and sender_id else f'"{name or sender_id}"'
    return f"[message from {sender}]\n{text}"


def without_sender(message: Message) -> Message:
    """Return a message without its sender's name. Where only one person writes, the model is not told who it is."""
    if isinstance(message, UserMessage) and (message.sender or message.sender_id):
        return UserMessage(
            text=message.text, schedule=message.schedule, is_ours=message.is_ours, pictures=message.pictures
        )
    return message


def escape_markers(text: str) -> str:
    """Escape everything in `text` that looks like the gateway's own words."""
    # Most texts have no bracket at all, and each request has all texts of its window.
    if "[" not in text and text.isascii():
        return text
    return _OUR_MARKER.sub(r"\\\g<0>", text)


@lru_cache(maxsize=1_024)  # Each turn needs it, and it looks at each character.
def sanitize_name(name: str) -> str:
    """Return a name on one line, without invisible characters, and without quotes and brackets that could end it."""
    kept: list[str] = []
    for character in name:
        category = unicodedata.category(character)
        if category[0] in "CZ":  # Control and format characters, separators.
            kept.append(" ")
        elif category not in {"Ps", "Pe", "Pi", "Pf"} and character not in '"\\<>':  # Brackets and quotes.
            kept.append(character)
    return excerpt("".join(kept), _MAX_NAME_CHARS)
