"""The fixtures of released versions: what is in them, and how to unpack them."""

import tarfile
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct

FIXTURES = Path(__file__).parent.parent / "fixtures" / "versions"
PACKED = "data.tar.xz"
_FACTS = "facts.json"


class Facts(Struct, frozen=True, kw_only=True):
    """What is known about a fixture besides the story."""

    made: datetime
    spool_format: int
    has_archive: bool


def versions() -> list[str]:
    return sorted(folder.name for folder in FIXTURES.iterdir() if (folder / _FACTS).exists())


def read_facts(version: str) -> Facts:
    return msgspec.json.decode((FIXTURES / version / _FACTS).read_bytes(), type=Facts)


def write_facts(folder: Path, facts: Facts) -> None:
    (folder / _FACTS).write_bytes(msgspec.json.format(msgspec.json.encode(facts)) + b"\n")


def unpack(version: str, folder: Path) -> Path:
    """Unpack the data directory of a fixture into `folder`, and return it."""
    data = folder / "data"
    with tarfile.open(FIXTURES / version / PACKED) as archive:
        archive.extractall(data, filter="data")
    data.chmod(0o700)
    return data
