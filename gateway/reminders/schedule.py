"""When a reminder is due, read from what a person or a model writes: a time, a duration, or a cron line. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from itertools import islice

from cronsim import CronSim, CronSimError

from gateway.errors import Refused
from gateway.text import excerpt

__all__ = ["Appointment", "in_words", "next_time", "read_when"]

FURTHEST = timedelta(days=5 * 366)
MOST_PER_HOUR = 12

_LONGEST = 100
_CRON_FIELDS = 5
_DATE_CHARS = 10
_DURATION = re.compile(
    r"P(?:(?P<weeks>\d{1,4})W)?(?:(?P<days>\d{1,5})D)?"
    r"(?:T(?:(?P<hours>\d{1,5})H)?(?:(?P<minutes>\d{1,7})M)?(?:(?P<seconds>\d{1,9})S)?)?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Appointment:
    due_at: datetime
    cron: str | None = None
    """When it comes again, if it does."""


def read_when(when: str, *, now: datetime, zone: tzinfo) -> Appointment:
    """Read a time in `zone`, a duration from `now` on, or a cron line. `Refused` says what is wrong with it."""
    when = when.strip()
    if len(when) > _LONGEST:
        raise Refused("that is too long for a time")
    fields = when.split()
    if len(fields) == _CRON_FIELDS:
        return _recurring(" ".join(fields), now, zone)
    due_at = (_after(when, now) or _at_clock(when, now, zone) or _at(when, zone)).astimezone(UTC)
    if due_at <= now:
        raise Refused(f"that is over: it is {in_words(now, zone)} now")
    if due_at - now > FURTHEST:
        raise Refused(f"that is more than {FURTHEST.days // 366} years away")
    return Appointment(due_at=due_at)


def next_time(cron: str, after: datetime, zone: tzinfo) -> datetime | None:
    """Return when a cron line holds next in `zone`; None when it never does.

    An hour that summer time skips is made up for right after it, and one that comes twice counts once, as in Debian's
    cron; lines with a `*` in front of minute or hour go by the time that has passed.
    """
    return next(_times(cron, after, zone), None)


def in_words(at: datetime, zone: tzinfo) -> str:
    return f"{at.astimezone(zone):%A, %d %B %Y, %H:%M %Z}".rstrip()


def _times(cron: str, after: datetime, zone: tzinfo) -> Iterator[datetime]:
    for at in CronSim(cron, after.astimezone(zone)):
        if at.astimezone(UTC) > after:  # While an hour is repeated, its first pass may come up, which is over.
            yield at.astimezone(UTC)


def _recurring(cron: str, now: datetime, zone: tzinfo) -> Appointment:
    try:
        times = list(islice(_times(cron, now, zone), MOST_PER_HOUR + 1))
    except CronSimError as mistake:
        raise Refused(f"{cron!r} is no cron line: {str(mistake).lower()}") from mistake
    if not times:
        raise Refused(f"{cron!r} never comes")
    if len(times) > MOST_PER_HOUR and times[-1] - times[0] < timedelta(hours=1):
        raise Refused(f"{cron!r} comes more than {MOST_PER_HOUR} times an hour")
    return Appointment(due_at=times[0], cron=cron)


def _after(when: str, now: datetime) -> datetime | None:
    match = _DURATION.fullmatch(when)
    if match is None:
        return None
    span = timedelta(**{unit: int(amount) for unit, amount in match.groupdict().items() if amount})
    return now + min(span, 2 * FURTHEST)


def _at_clock(when: str, now: datetime, zone: tzinfo) -> datetime | None:
    """Read a time of day: the next one that there is."""
    try:
        clock = time.fromisoformat(when.zfill(len("00:00")))
    except ValueError:
        return None
    if ":" not in when or clock.tzinfo is not None:
        return None
    today = now.astimezone(zone).date()
    candidates = (datetime.combine(today + timedelta(days=days), clock, zone) for days in (0, 1, 2))
    return next(at for at in candidates if at.astimezone(UTC) > now)


def _at(when: str, zone: tzinfo) -> datetime:
    try:
        at = datetime.fromisoformat(when)
        at = at.replace(tzinfo=zone) if at.tzinfo is None else at
        at.astimezone(UTC)
    except (ValueError, OverflowError) as mistake:
        raise Refused(
            f"{excerpt(when, 40)!r} is no time: write it like 18:00, 2027-05-01T18:00, PT20M (in 20 minutes) or "
            "`0 9 * * 1-5` (a cron line)"
        ) from mistake
    if len(when) <= _DATE_CHARS:
        raise Refused(f"{when} lacks the time of day: write it like {at:%Y-%m-%d}T09:00")
    return at
