"""What a daemon under test is told: where it lives, how its channel behaves, and where it is to die."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["CHANNEL", "Order"]

CHANNEL = "scripted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """`flavour` names what the channel can do; `die_at` is the point at which to die, 0 for none."""

    home: Path
    flavour: str = "plain"
    busy: str = "followup"
    die_at: int = 0
    flush_interval: float = 0.1
    shutdown_timeout: float = 10.0
    max_backlog_age: float = 86_400.0
    max_parallel_turns: int = 64
    data: Path | None = None
    channels: dict[str, Any] = field(default_factory=dict)
    """Tables of channels, of any shape, to use instead of the scripted one."""

    @property
    def data_dir(self) -> Path:
        return self.data or self.home / "data"

    @property
    def socket(self) -> Path:
        return self.home / "platform.sock"

    @property
    def effects(self) -> Path:
        """Where the tool leaves one line for each time it ran."""
        return self.home / "effects"

    @property
    def fired(self) -> Path:
        return self.home / "fired"

    @property
    def clock(self) -> Path:
        """Has the seconds that the daemon's clock is off, if it is there."""
        return self.home / "clock"

    @property
    def gate(self) -> Path:
        """Lets the model answer what it was asked slowly, once it is there."""
        return self.home / "gate"

    @property
    def log(self) -> Path:
        return self.home / "log"

    def encode(self) -> bytes:
        return msgspec.json.encode(asdict(self), enc_hook=str)

    @staticmethod
    def decode(line: bytes) -> "Order":
        return msgspec.json.decode(line, type=Order, dec_hook=lambda kind, value: kind(value))
