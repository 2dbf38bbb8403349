"""What holds now: the settings in force, which a reload replaces, and the guest book. Whoever looks next sees it."""

from dataclasses import dataclass, field

from config import Settings
from gateway.guests import GuestBook

__all__ = ["Live"]


@dataclass(slots=True)
class Live:
    settings: Settings
    book: GuestBook = field(default_factory=GuestBook)
