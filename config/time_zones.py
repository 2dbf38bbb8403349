"""Time zones: by their names, or the one that the system is set to."""

import os
from datetime import UTC, tzinfo
from functools import cache
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo

from pydantic import AfterValidator

from config.errors import Mistake

_LOCALTIME = Path("/etc/localtime")
_DATABASE = "zoneinfo/"
_UNKNOWN = (KeyError, ValueError, OSError)
"""What `ZoneInfo` raises for names that are none: unknown ones, strange ones, and folders."""


def _check_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except _UNKNOWN as unknown:
        raise Mistake("is no time zone that this system knows", 'write it like "Europe/Berlin" or "UTC"') from unknown
    return name


ZoneName = Annotated[str, AfterValidator(_check_zone)]


@cache
def zone_named(name: str | None) -> tzinfo:
    """Return that time zone; without a name, that of the system, as it was at the first call."""
    return _system_zone(os.environ.get("TZ", ""), _LOCALTIME) if name is None else ZoneInfo(name)


def _system_zone(variable: str, localtime: Path) -> tzinfo:
    """Look where the C library looks. A zone that cannot be made out is UTC."""
    try:
        if variable:
            return ZoneInfo(variable.removeprefix(":"))
        _, is_known, name = str(localtime.resolve()).partition(_DATABASE)
        if is_known:
            return ZoneInfo(name)
        with localtime.open("rb") as file:
            return ZoneInfo.from_file(file, key="local")
    except _UNKNOWN:
        return UTC
