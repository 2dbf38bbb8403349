from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Refused
from gateway.scheduler.recurrence import MAX_AHEAD, DueTime, next_time, parse_due_time

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 16, 12, 0, 30, tzinfo=UTC)
"""A Monday; 13:00:30 in Berlin."""


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type, misc]  # As many parts as a date and time take.


@pytest.mark.parametrize(
    ("when", "due_at"),
    [
        ("PT20M", NOW + timedelta(minutes=20)),
        ("pt1h30m", NOW + timedelta(minutes=90)),
        ("P1DT1S", NOW + timedelta(days=1, seconds=1)),
        ("P2W", NOW + timedelta(weeks=2)),
        ("18:00", utc(2026, 11, 16, 17)),
        ("9:00", utc(2026, 11, 17, 8)),
        ("13:00", utc(2026, 11, 17, 12)),
        ("2026-11-17T18:00", utc(2026, 11, 17, 17)),
        ("2027-07-01 18:00:05", utc(2027, 7, 1, 16, 0, 5)),
        ("2026-11-17T18:00Z", utc(2026, 11, 17, 18)),
        ("2026-11-17T18:00-05:00", utc(2026, 11, 17, 23)),
        ("2027-03-28T02:30", utc(2027, 3, 28, 1, 30)),
    ],
)
def test_times_are_parsed_in_the_configured_zone(when: str, due_at: datetime) -> None:
    assert parse_due_time(when, now=NOW, zone=BERLIN) == DueTime(due_at=due_at)


def test_a_cron_line_is_due_at_its_next_time() -> None:
    due = parse_due_time(" 0 9  * * mon-fri ", now=NOW, zone=BERLIN)
    assert due == DueTime(due_at=utc(2026, 11, 17, 8), cron="0 9 * * mon-fri")


@pytest.mark.parametrize(
    ("when", "why"),
    [
        ("", "is not a time"),
        ("soon", "is not a time"),
        ("25:00", "is not a time"),
        ("PT", "has passed"),
        ("PT0S", "has passed"),
        ("2026-11-16T12:00", "has passed: it is Monday, 16 November 2026, 13:00 CET now"),
        ("2026-11-17", "has no time of day"),
        ("2036-11-17T18:00", "more than 5 years away"),
        ("P9999W", "more than 5 years away"),
        ("0001-01-01T00:00+14:00", "is not a time"),
        ("61 * * * *", "bad minute"),
        ("a b c d e", "bad minute"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("0 0 */31 2 1#5", "never happens"),
        ("* * * * *", "more often than 12 times an hour"),
        ("9" * 500, "too long"),
    ],
)
def test_impossible_times_are_refused_with_a_reason(when: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        parse_due_time(when, now=NOW, zone=BERLIN)


def test_every_five_minutes_is_allowed() -> None:
    assert parse_due_time("*/5 * * * *", now=NOW, zone=UTC).due_at == utc(2026, 11, 16, 12, 5)


def test_a_daily_time_stays_the_same_when_summer_time_ends() -> None:
    first = next_time("0 9 * * *", utc(2026, 10, 23, 12), BERLIN)
    assert first == utc(2026, 10, 24, 7)
    assert next_time("0 9 * * *", first, BERLIN) == utc(2026, 10, 25, 8)


def test_a_skipped_hour_comes_later_and_a_repeated_hour_counts_once() -> None:
    assert next_time("30 2 * * *", utc(2027, 3, 27, 12), BERLIN) == utc(2027, 3, 28, 1)
    first = next_time("30 2 * * *", utc(2026, 10, 24, 12), BERLIN)
    assert first == utc(2026, 10, 25, 0, 30)
    assert next_time("30 2 * * *", first, BERLIN) == utc(2026, 10, 26, 1, 30)


@given(st.text(max_size=30) | st.from_regex(r"[0-9*/,\-LW#a-z]{1,5}( [0-9*/,\-LW#a-z]{1,5}){4}", fullmatch=True))
def test_any_input_is_a_future_time_or_refused(when: str) -> None:
    try:
        due = parse_due_time(when, now=NOW, zone=BERLIN)
    except Refused:
        return
    assert due.due_at > NOW
    assert due.cron or due.due_at <= NOW + MAX_AHEAD


@given(st.datetimes(datetime(2026, 1, 1), datetime(2028, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001 - hypothesis adds the zone
def test_the_next_time_is_in_the_future(after: datetime) -> None:
    for cron in ("30 2 * * *", "*/20 * * * *", "0 */3 * * *"):
        at = next_time(cron, after, BERLIN)
        assert at is not None
        assert after < at
