"""Parses the due time of a reminder: a time, a duration, or a cron line. Pure functions."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta, tzinfo
from itertools import islice

from cronsim import CronSim, CronSimError
from msgspec import Struct

from gateway.errors import Refused
from gateway.text import excerpt

MAX_AHEAD = timedelta(days=5 * 366)
MAX_PER_HOUR = 12

_MAX_CHARS = 100
_CRON_FIELDS = 5
_DATE_CHARS = 10
_DURATION = re.compile(
    r"P(?:(?P<weeks>\d{1,4})W)?(?:(?P<days>\d{1,5})D)?"
    r"(?:T(?:(?P<hours>\d{1,5})H)?(?:(?P<minutes>\d{1,7})M)?(?:(?P<seconds>\d{1,9})S)?)?",
    re.IGNORECASE,
)


class DueTime(Struct, frozen=True, kw_only=True):
    due_at: datetime
    cron: str | None = None
    """The cron line of a recurring reminder."""


def parse_due_time(when: str, *, now: datetime, zone: tzinfo) -> DueTime:
    """Parse a time in `zone`, a duration from `now` on, or a cron line. Raises `Refused` with the reason."""
    when = when.strip()
    if len(when) > _MAX_CHARS:
        raise Refused("that is too long for a time")
    fields = when.split()
    if len(fields) == _CRON_FIELDS:
        return _parse_cron(" ".join(fields), now, zone)
    due_at = (_parse_duration(when, now) or _parse_clock(when, now, zone) or _parse_date(when, zone)).astimezone(UTC)
    if due_at <= now:
        raise Refused(f"that time has passed: it is {format_time(now, zone)} now")
    if due_at - now > MAX_AHEAD:
        raise Refused(f"that is more than {MAX_AHEAD.days // 366} years away")
    return DueTime(due_at=due_at)


def next_time(cron: str, after: datetime, zone: tzinfo) -> datetime | None:
    """Return the next time of a cron line in `zone`, or None if there are no more.

    As in Debian's cron, a time in the hour that summer time skips comes right after it, and a time in the repeated hour
    comes once. Lines with a `*` for the minute or hour follow the elapsed time.
    """
    return next(_times(cron, after, zone), None)


def format_time(at: datetime, zone: tzinfo) -> str:
    return f"{at.astimezone(zone):%A, %d %B %Y, %H:%M %Z}".rstrip()


def _times(cron: str, after: datetime, zone: tzinfo) -> Iterator[datetime]:
    for at in CronSim(cron, after.astimezone(zone)):
        if at.astimezone(UTC) > after:  # In a repeated hour, CronSim may yield the first pass, which is over.
            yield at.astimezone(UTC)


def _parse_cron(cron: str, now: datetime, zone: tzinfo) -> DueTime:
    try:
        times = list(islice(_times(cron, now, zone), MAX_PER_HOUR + 1))
    except CronSimError as mistake:
        raise Refused(f"{cron!r} is not a cron line: {str(mistake).lower()}") from mistake
    if not times:
        raise Refused(f"{cron!r} never happens")
    if len(times) > MAX_PER_HOUR and times[-1] - times[0] < timedelta(hours=1):
        raise Refused(f"{cron!r} is more often than {MAX_PER_HOUR} times an hour")
    return DueTime(due_at=times[0], cron=cron)


def _parse_duration(when: str, now: datetime) -> datetime | None:
    match = _DURATION.fullmatch(when)
    if match is None:
        return None
    span = timedelta(**{unit: int(amount) for unit, amount in match.groupdict().items() if amount})
    return now + min(span, 2 * MAX_AHEAD)


def _parse_clock(when: str, now: datetime, zone: tzinfo) -> datetime | None:
    """Parse a time of day and return its next occurrence. Summer time may skip it on one day."""
    try:
        clock = time.fromisoformat(when.zfill(len("00:00")))
    except ValueError:
        return None
    if ":" not in when or clock.tzinfo is not None:
        return None
    today = now.astimezone(zone).date()
    candidates = (datetime.combine(today + timedelta(days=days), clock, zone) for days in (0, 1, 2))
    return next(at for at in candidates if at.astimezone(UTC) > now)


def _parse_date(when: str, zone: tzinfo) -> datetime:
    try:
        at = datetime.fromisoformat(when)
        at = at.replace(tzinfo=zone) if at.tzinfo is None else at
        at.astimezone(UTC)
    except (ValueError, OverflowError) as mistake:
        raise Refused(
            f"{excerpt(when, 40)!r} is not a time. Write it like 18:00, 2027-05-01T18:00, PT20M (in 20 minutes) or "
            "`0 9 * * 1-5` (a cron line)"
        ) from mistake
    if len(when) <= _DATE_CHARS:
        raise Refused(f"{when} has no time of day. Write it like {at:%Y-%m-%d}T09:00")
    return at
