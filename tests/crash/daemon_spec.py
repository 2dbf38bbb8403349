"""Describes a daemon under test: its folders, what its channel can do, and the point at which it kills itself."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

CHANNEL = "scripted"


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSpec:
    """`flavour` is a key of `scripted_channel.FLAVOURS`. `die_at` is the number of a kill point, or 0 for none."""

    home: Path
    flavour: str = "plain"
    busy: str = "followup"
    die_at: int = 0
    flush_interval: float = 0.1
    shutdown_timeout: float = 10.0
    max_backlog_age: float = 86_400.0
    max_parallel_turns: int = 64
    backlog_limit: int = 20
    data: Path | None = None
    channels: dict[str, Any] = field(default_factory=dict)
    """Configuration tables of channels to use instead of the scripted one."""

    @property
    def data_dir(self) -> Path:
        return self.data or self.home / "data"

    @property
    def socket(self) -> Path:
        return self.home / "platform.sock"

    @property
    def effects(self) -> Path:
        """The file to which a tool appends one line per run."""
        return self.home / "effects"

    @property
    def death_report(self) -> Path:
        """The file that names the kill point at which the daemon has died."""
        return self.home / "death-report"

    @property
    def clock(self) -> Path:
        """The file with the seconds by which the daemon's clock is wrong. Absent if the clock is right."""
        return self.home / "clock"

    @property
    def gate(self) -> Path:
        """The file whose creation lets the model answer `slow` messages."""
        return self.home / "gate"

    @property
    def log(self) -> Path:
        return self.home / "log"

    def encode(self) -> bytes:
        return msgspec.json.encode(asdict(self), enc_hook=str)

    @staticmethod
    def decode(line: bytes) -> "DaemonSpec":
        return msgspec.json.decode(line, type=DaemonSpec, dec_hook=lambda kind, value: kind(value))
