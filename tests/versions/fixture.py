"""The fixtures of released versions: what is in them, and how to unpack them."""

import lzma
import tarfile
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct

FIXTURES = Path(__file__).parent.parent / "fixtures" / "versions"
PACKED = "data.tar.xz"
DATABASE = "gatehouse.db"
"""The SQLite database of a version, with the same data."""
_FACTS = "facts.json"


class Facts(Struct, frozen=True, kw_only=True):
    """What is known about a fixture besides the story."""

    made: datetime
    spool_format: int
    has_archive: bool


def versions() -> list[str]:
    return sorted(folder.name for folder in FIXTURES.iterdir() if (folder / _FACTS).exists())


def database_versions() -> list[str]:
    return [version for version in versions() if (FIXTURES / version / f"{DATABASE}.xz").exists()]


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


def unpack_database(version: str, folder: Path) -> Path:
    """Write the SQLite database of a version into `folder`, and return it."""
    path = folder / DATABASE
    path.write_bytes(lzma.decompress((FIXTURES / version / f"{DATABASE}.xz").read_bytes()))
    path.chmod(0o600)
    return path
