"""Times: how people write them, when they come next, and how to go on after a jump of the clock. Pure functions."""

import math
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, time, timedelta, tzinfo
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from msgspec import Struct

from gateway.errors import Refused
from gateway.spool import Recurrence
from gateway.text import excerpt
from gateway.text.plain import duration

MAX_AHEAD = timedelta(days=5 * 366)
MAX_PER_HOUR = 12

TRUSTED_AHEAD = timedelta(days=1)
"""What was done for a time further ahead than this, and than the next two times, was done by a wrong clock."""

_MAX_CHARS = 100
_CRON_FIELDS = 5
_DATE_CHARS = 10
_DURATION = re.compile(
    r"P(?:(?P<weeks>\d{1,4})W)?(?:(?P<days>\d{1,5})D)?"
    r"(?:T(?:(?P<hours>\d{1,5})H)?(?:(?P<minutes>\d{1,7})M)?(?:(?P<seconds>\d{1,9})S)?)?",
    re.IGNORECASE,
)


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_SPAN = re.compile(
    r"(?P<amount>\d{1,6})\s*"
    r"(?P<unit>s(?:ec(?:ond)?s?)?|m(?:in(?:ute)?s?)?|h(?:rs?|ours?)?|d(?:ays?)?|w(?:ks?|eeks?)?)",
    re.IGNORECASE,
)
_EVERY = re.compile(rf"every\s+(?:{_SPAN.pattern}|(?P<single>minute|hour|day|week))", re.IGNORECASE)
_ON_DAYS = re.compile(
    r"(?:every\s+)?(?P<days>daily|day|morning|weekdays?|weekends?|(?:mon|tues|wednes|thurs|fri|satur|sun)days?)\s+"
    r"(?:(?:at\s+)?(?P<hour>[01]?\d|2[0-3])[:.](?P<minute>[0-5]\d)"
    r"|(?:at\s+)?(?P<half_hour>1[0-2]|0?[1-9])(?:[:.](?P<half_minute>[0-5]\d))?\s*(?P<half>am|pm)"
    r"|at\s+(?P<full_hour>[01]?\d|2[0-3]))",
    re.IGNORECASE,
)
_TIME = re.compile(
    r"P(?:\d+[WD])*(?:T(?:\d+[HMS])+)?|[0-2]?\d:[0-5]\d|\d{4}-\d\d-\d\d[T ]\d\d:\d\d\S*",
    re.IGNORECASE,
)
_CRON_FIELD = re.compile(r"[\d*][\d*/,\-#L]*|(?:[a-z]{3}[,-]?)+|L", re.IGNORECASE)
_DAYS = {"daily": "*", "day": "*", "morning": "*", "weekday": "1-5", "weekend": "6,0"}
_WEEK = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_LEADING_WORD = re.compile(r"(?:at|in|on)\s+", re.IGNORECASE)
_HORIZON = 60
"""How many times of a cron line are looked at for the shortest time between two of them."""


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


def parse_recurrence(when: str, *, now: datetime, zone: tzinfo, zone_name: str, min_interval: float) -> Recurrence:
    """Parse how people write when a schedule runs. Raises `Refused` with the reason.

    That is a cron line, `every 30m`, `daily 8:00`, `every weekday at 8`, `mondays 8 am`, or a time as for reminders.
    """
    when = " ".join(when.split())
    if len(when) > _MAX_CHARS:
        raise Refused("that is too long for a time")
    if (every := _EVERY.fullmatch(when)) is not None:
        single = every["single"]
        amount, unit = (1, single[0]) if single else (int(every["amount"]), every["unit"][0])
        recurrence = Recurrence(every=float(amount * _UNITS[unit.lower()]), start=now)
    elif (days := _ON_DAYS.fullmatch(when)) is not None:
        named = days["days"].lower()
        on = _DAYS.get(named.removesuffix("s")) or str(_WEEK.index(named[:3]))
        hour = int(days["hour"] or days["full_hour"] or days["half_hour"])
        if days["half"]:
            hour = hour % 12 + 12 * (days["half"].lower() == "pm")
        minute = int(days["minute"] or days["half_minute"] or 0)
        recurrence = Recurrence(cron=f"{minute} {hour} * * {on}", zone=zone_name)
    elif len(when.split()) == _CRON_FIELDS:
        recurrence = Recurrence(cron=when, zone=zone_name)
    else:
        due = parse_due_time(_spelled_out(when), now=now, zone=zone)
        recurrence = Recurrence(at=due.due_at)
    check_recurrence(recurrence, now=now, zone=zone, min_interval=min_interval)
    return recurrence


def count_words_of_time(words: Sequence[str]) -> int:
    """Return how many of the first words of a text say when something happens: as many as can belong to it, or 0."""
    for length in range(min(len(words), _CRON_FIELDS), 0, -1):
        text = " ".join(words[:length]).removesuffix(",")
        rest = _spelled_out(text)
        is_cron = length == _CRON_FIELDS and all(_CRON_FIELD.fullmatch(word) for word in words[:length])
        if is_cron or _EVERY.fullmatch(text) or _ON_DAYS.fullmatch(text) or _TIME.fullmatch(rest):
            return length
    return 0


def _spelled_out(when: str) -> str:
    """Return a time as `parse_due_time` reads it: without `at`, and `in 20m` as an ISO duration."""
    rest = _LEADING_WORD.sub("", when, count=1)
    span = _SPAN.fullmatch(rest)
    return rest if span is None else f"PT{int(span['amount']) * _UNITS[span['unit'][0].lower()]}S"


def check_recurrence(
    recurrence: Recurrence, *, now: datetime, zone: tzinfo, min_interval: float, jitter: float = 0.0
) -> None:
    """Raise `Refused` for something that never happens, or more often than every `min_interval` seconds.

    A `jitter` of more than half of that would mix up the times.
    """
    if jitter:
        min_interval = max(min_interval, 2 * jitter)
    too_often = f"is more often than every {duration(timedelta(seconds=min_interval))}"
    if recurrence.every:
        if recurrence.every < min_interval:
            raise Refused(f"every {recurrence.every:g} seconds {too_often} (limits.schedule_interval)")
        if recurrence.every > MAX_AHEAD.total_seconds():
            raise Refused(f"that is more than {MAX_AHEAD.days // 366} years away")
    elif recurrence.cron:
        cron = recurrence.cron
        try:
            times = list(islice(_times(cron, now, zone_of(recurrence, zone)), _HORIZON))
        except CronSimError as mistake:
            raise Refused(f"{cron!r} is not a cron line: {str(mistake).lower()}") from mistake
        if not times:
            raise Refused(f"{cron!r} never happens")
        if any((later - earlier).total_seconds() < min_interval for earlier, later in pairwise(times)):
            raise Refused(f"{cron!r} {too_often} (limits.schedule_interval)")


def zone_of(recurrence: Recurrence, default: tzinfo) -> tzinfo:
    """Return the time zone of a cron line. Raises `Refused` if this system does not know it any more."""
    if not recurrence.zone:
        return default
    try:
        return ZoneInfo(recurrence.zone)
    except (KeyError, ValueError, OSError) as unknown:
        raise Refused(f"this system does not know the time zone {excerpt(recurrence.zone, 40)!r}") from unknown


def parse_span(text: str) -> float:
    """Return the seconds of a duration like `90s`, `5m` or `2h`. Raises `Refused`."""
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise Refused(f"{excerpt(text, 40)!r} is not a duration. Write it like 90s, 5m or 2h")
    return float(int(found["amount"]) * _UNITS[found["unit"][0].lower()])


def following(recurrence: Recurrence, after: datetime, zone: tzinfo) -> datetime | None:
    """Return the next time behind `after`, or None if there are no more. Raises `Refused` as `zone_of`."""
    if recurrence.cron:
        return next_time(recurrence.cron, after, zone_of(recurrence, zone))
    if recurrence.every and recurrence.start is not None:
        past = max(0, math.floor((after - recurrence.start).total_seconds() / recurrence.every))
        found = recurrence.start + timedelta(seconds=(past + 1) * recurrence.every)
        # A sum of floats may be short of `after` by less than a microsecond.
        return found if found > after else found + timedelta(seconds=recurrence.every)
    return recurrence.at if recurrence.at is not None and recurrence.at > after else None


def resume_time(recurrence: Recurrence, last: datetime | None, now: datetime, zone: tzinfo) -> datetime | None:
    """Return the next time, never one that is over: `last` is the time that was done last.

    That is later than `now` if the clock was set back. A time far ahead was set by a wrong clock and is ignored:
    nothing would happen until then.
    """
    if last is not None and last > now:
        coming = following(recurrence, now, zone) or now
        if last <= max(now + TRUSTED_AHEAD, following(recurrence, coming, zone) or coming):
            return following(recurrence, last, zone)
    return following(recurrence, now, zone)


def describe_recurrence(recurrence: Recurrence, zone: tzinfo) -> str:
    """Return when something happens, for people."""
    if recurrence.every:
        unit = next((unit for unit in "wdhm" if recurrence.every % _UNITS[unit] == 0), "s")
        return f"every {recurrence.every / _UNITS[unit]:g} {unit if unit != 'm' else 'min'}"
    if recurrence.cron:
        return f"cron {recurrence.cron}{f' ({recurrence.zone})' if recurrence.zone else ''}"
    return f"at {recurrence.at.astimezone(zone):%a %d %b %Y, %H:%M}" if recurrence.at is not None else "never"


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
