"""The words of a rich message: https://core.telegram.org/bots/api#richmessage. Pure."""

from collections.abc import Iterator

from aiogram.types import RichMessage
from pydantic import BaseModel

__all__ = ["words_of"]

_INLINE = ("text", "expression", "alternative_text", "button")
_BLOCKS = ("label", "summary", "blocks", "items", "cells", "caption", "credit")


def words_of(message: RichMessage) -> str:
    """Return what can be read in it, a line for each block; its media are left out."""
    return "\n".join(line for line in _lines(message.blocks) if line.strip())


def _lines(block: object) -> Iterator[str]:
    """Yield the lines of a block. Which fields it has depends on its kind, of which there may be new ones."""
    match block:
        case str():
            yield block
        case list():
            for part in block:
                yield from _lines(part)
        case BaseModel():
            yield _inline(block)
            for name in _BLOCKS:
                yield from _lines(getattr(block, name, None))


def _inline(text: object) -> str:
    match text:
        case str():
            return text
        case list():
            return "".join(map(_inline, text))
        case BaseModel():
            return "".join(_inline(getattr(text, name, None)) for name in _INLINE)
    return ""
