"""Numbers as people type them behind a command."""

from gateway.errors import Refused

__all__ = ["is_number", "read_number"]

_MOST_DIGITS = 9


def is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def read_number(argument: str, example: str) -> int:
    """Return the number, or refuse with the `example` of how to write it."""
    if not is_number(argument):
        raise Refused(f"Which one? Send its number, like {example}. /session list shows the numbers.")
    return int(argument)
