"""The cut of the changelog: what is under Unreleased becomes the section of a version."""

import re
from datetime import date

from gateway.errors import Refused

_UNRELEASED = re.compile(r"^## \[Unreleased\]\n(?P<changes>.*?)(?=^## \[|\Z)", re.MULTILINE | re.DOTALL)


def has_version(changelog: str, version: str) -> bool:
    return re.search(rf"^## \[{re.escape(version)}\]", changelog, re.MULTILINE) is not None


def cut(changelog: str, version: str, day: date) -> str:
    """Move the changes under Unreleased into a section of the version. Raises `Refused` if there are none."""
    found = _UNRELEASED.search(changelog)
    if found is None or not found["changes"].strip():
        raise Refused("CHANGELOG.md has nothing under `## [Unreleased]`. Describe what has changed, then release it.")
    heading = f"## [Unreleased]\n\n## [{version}] - {day.isoformat()}\n"
    return changelog[: found.start()] + heading + found["changes"] + changelog[found.end() :]
