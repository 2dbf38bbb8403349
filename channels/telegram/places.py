"""Where on Telegram something is to be said."""

from dataclasses import dataclass

from gateway.contract import Address
from gateway.errors import Undeliverable

__all__ = ["Place", "place_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    chat: int
    thread: int | None = None


def place_of(address: Address) -> Place:
    try:
        return Place(chat=int(address.peer), thread=int(address.thread) if address.thread else None)
    except ValueError as wrong:
        raise Undeliverable(f"{address.peer} is no chat on Telegram.") from wrong
