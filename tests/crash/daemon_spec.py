"""Describes a daemon under test: its folders, what its channel can do, and the point at which it kills itself."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

CHANNEL = "scripted"


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonSpec:
    """`flavour` is a key of `scripted_channel.FLAVOURS`. `die_at` is the number of a kill point, or 0 for none.

    A daemon that `pauses` does not die at the point. It waits there until the file `resume` exists.
    """

    home: Path
    flavour: str = "plain"
    busy: str = "followup"
    die_at: int = 0
    pauses: bool = False
    flush_interval: float = 0.1
    shutdown_timeout: float = 10.0
    max_backlog_age: float = 86_400.0
    max_parallel_turns: int = 64
    backlog_limit: int = 20
    archives: bool = False
    """Whether the model archives sessions into memory. Otherwise, outlines go there."""
    data: Path | None = None
    storage: str = "files:"
    """The URL of the storage. Use `engines.storage_url` for that of a new one."""
    channels: dict[str, Any] = field(default_factory=dict)
    """Configuration tables of channels to use instead of the scripted one."""
    coder: dict[str, Any] | None = None
    """Settings of a coding agent that answers instead of the model, in the repository `repo`."""
    sandbox_socket: Path | None = None

    @property
    def data_dir(self) -> Path:
        return self.data or self.home / "data"

    @property
    def has_files(self) -> bool:
        """Whether transcripts are files."""
        return self.storage == "files:"

    @property
    def is_postgres(self) -> bool:
        return self.storage.startswith("postgresql:")

    @property
    def database_file(self) -> Path:
        """The SQLite file with the spool."""
        return self.data_dir / "spool.db" if self.has_files else Path(self.storage.removeprefix("sqlite://"))

    @property
    def socket(self) -> Path:
        return self.home / "platform.sock"

    @property
    def repo(self) -> Path:
        """The repository of the coding agent."""
        return self.home / "repos/app"

    @property
    def effects(self) -> Path:
        """The file to which a tool appends one line per run."""
        return self.home / "effects"

    @property
    def death_report(self) -> Path:
        """The file that names the kill point at which the daemon has died."""
        return self.home / "death-report"

    @property
    def resume(self) -> Path:
        return self.home / "resume"

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
