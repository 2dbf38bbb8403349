"""What a backup is: a tar archive of the data directory's files, with a manifest of them all at its end."""

import re

import msgspec

__all__ = [
    "CONFIG",
    "INDEX",
    "MANIFEST",
    "SECRET_FILES",
    "SPOOL",
    "TRANSCRIPTS",
    "TREES",
    "VERSION",
    "Manifest",
    "Member",
    "is_a_place",
]

VERSION = 1
FORMAT = "gatehouse-backup"

SPOOL = "spool.db"
INDEX = "sessions/index.json"
TRANSCRIPTS = "sessions/transcripts"
MANIFEST = "manifest.json"
CONFIG = "gatehouse.toml"
SECRET_FILES = ("http.token", "chat_history")
"""Let somebody in, or hold what was typed; only in a backup with secrets."""
TREES = ("memory", "files", "workspace")
"""Folders that are taken whole."""

_PLACE = re.compile(
    rf"{re.escape(SPOOL)}|{re.escape(INDEX)}|{re.escape(TRANSCRIPTS)}/[^/\0]+\.jsonl"
    rf"|{re.escape(CONFIG)}|{'|'.join(map(re.escape, SECRET_FILES))}"
    rf"|(?:{'|'.join(TREES)})/[^\0]+",
    re.DOTALL,
)


class Member(msgspec.Struct, frozen=True):
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The last member. `skipped` are files that could not be taken, or changed while they were."""

    format: str = FORMAT
    version: int = VERSION
    gatehouse: str
    taken_at: str
    has_secrets: bool
    members: dict[str, Member]
    skipped: list[str]

    def transcripts(self) -> int:
        return sum(name.startswith(f"{TRANSCRIPTS}/") for name in self.members)


def is_a_place(name: str) -> bool:
    """Tell whether a member may lie there: nothing is restored that a backup of ours would not hold."""
    return _PLACE.fullmatch(name) is not None and not {"", ".", ".."} & set(name.split("/"))
