"""Time zones: a zone by its name, or the zone that the system is set to."""

import os
from datetime import UTC, tzinfo
from functools import cache
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo

from pydantic import AfterValidator

from config.errors import InvalidValue

_UNKNOWN = (KeyError, ValueError, OSError)
"""`ZoneInfo` raises these for unknown names, for malformed names, and for folders of the database."""


def _check_name(name: str) -> str:
    try:
        ZoneInfo(name)
    except _UNKNOWN as unknown:
        raise InvalidValue("is not a time zone of this system", 'write it like "Europe/Berlin" or "UTC"') from unknown
    return name


TimeZoneName = Annotated[str, AfterValidator(_check_name)]


@cache
def get_time_zone(name: str | None) -> tzinfo:
    """Return the time zone `name`, or for None the system's zone as it was at the first call."""
    return ZoneInfo(name) if name is not None else system_time_zone(os.environ.get("TZ", ""), Path("/etc/localtime"))


def system_time_zone(variable: str, localtime: Path) -> tzinfo:
    """Return the system's zone from $TZ (`variable`) or the file `localtime`, like the C library; UTC if both fail."""
    try:
        if variable:
            return ZoneInfo(variable.removeprefix(":"))
        # Usually a link into the database, whose path is the name of the zone.
        _, is_linked, name = str(localtime.resolve()).partition("zoneinfo/")
        if is_linked:
            return ZoneInfo(name)
        with localtime.open("rb") as file:
            return ZoneInfo.from_file(file, key="local")
    except _UNKNOWN:
        return UTC
