"""The settings in force now: a reload puts new ones in, and whoever reads them next sees those."""

from dataclasses import dataclass

from config import Settings

__all__ = ["Live"]


@dataclass(slots=True)
class Live:
    settings: Settings
