"""Wheels of the installed packages, so that installers work without a network.

Each is put together from the files that the installed package lists. So a test installs real packages, in the versions
of this environment, but not byte for byte the files of a package index.
"""

import csv
import zipfile
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def closure(requirements: Iterable[str]) -> dict[str, Distribution]:
    """Return the packages that satisfy the requirements, and what those need, by name."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    open_ones = [(Requirement(each), "") for each in requirements]
    while open_ones:
        requirement, extra = open_ones.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        found[name] = distribution(name)
        for wanted in ("", *requirement.extras):
            if (name, wanted) not in seen:
                seen.add((name, wanted))
                open_ones += [(Requirement(each), wanted) for each in found[name].requires or []]
    return found


def pack(package: Distribution, folder: Path) -> Path:
    """Write the wheel of an installed package into the folder."""
    wheel = package.read_text("WHEEL") or ""
    tags = [line.removeprefix("Tag: ").strip() for line in wheel.splitlines() if line.startswith("Tag: ")]
    # A tag with several values in a part stands for all combinations of them.
    parts = (".".join(sorted(set(part))) for part in zip(*(tag.split("-") for tag in tags), strict=True))
    name = canonicalize_name(package.name).replace("-", "_")
    path = folder / f"{name}-{package.version}-{'-'.join(parts)}.whl"
    record = f"{name}-{package.version}.dist-info/RECORD"
    with zipfile.ZipFile(path, "w") as packed:
        lines = []
        for row in csv.reader((package.read_text("RECORD") or "").splitlines()):
            if row[0].startswith(("..", "/")) or row[0].endswith((".pyc", "RECORD", "INSTALLER", "direct_url.json")):
                continue
            packed.write(package.locate_file(row[0]), row[0])  # type: ignore[arg-type]  # A path on the disk.
            lines.append(",".join((f'"{row[0]}"', *row[1:])))
            if row[0].endswith(".dist-info/METADATA"):
                record = row[0].replace("METADATA", "RECORD")
        packed.writestr(record, "\n".join([*lines, f"{record},,", ""]))
    return path
