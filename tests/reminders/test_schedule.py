from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Refused
from gateway.reminders.schedule import FURTHEST, Appointment, next_time, read_when

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
def test_a_time_is_meant_in_the_zone_of_the_people(when: str, due_at: datetime) -> None:
    assert read_when(when, now=NOW, zone=BERLIN) == Appointment(due_at=due_at)


def test_a_cron_line_is_due_at_its_next_time() -> None:
    due = read_when(" 0 9  * * mon-fri ", now=NOW, zone=BERLIN)
    assert due == Appointment(due_at=utc(2026, 11, 17, 8), cron="0 9 * * mon-fri")


@pytest.mark.parametrize(
    ("when", "why"),
    [
        ("", "is no time"),
        ("soon", "is no time"),
        ("25:00", "is no time"),
        ("PT", "is over"),
        ("PT0S", "is over"),
        ("2026-11-16T12:00", "is over: it is Monday, 16 November 2026, 13:00 CET now"),
        ("2026-11-17", "lacks the time of day"),
        ("2036-11-17T18:00", "more than 5 years away"),
        ("P9999W", "more than 5 years away"),
        ("0001-01-01T00:00+14:00", "is no time"),
        ("61 * * * *", "bad minute"),
        ("a b c d e", "bad minute"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("0 0 */31 2 1#5", "never comes"),
        ("* * * * *", "more than 12 times an hour"),
        ("9" * 500, "too long"),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(when: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        read_when(when, now=NOW, zone=BERLIN)


def test_every_five_minutes_is_often_enough() -> None:
    assert read_when("*/5 * * * *", now=NOW, zone=UTC).due_at == utc(2026, 11, 16, 12, 5)


def test_nine_in_the_morning_stays_nine_when_summer_time_ends() -> None:
    first = next_time("0 9 * * *", utc(2026, 10, 23, 12), BERLIN)
    assert first == utc(2026, 10, 24, 7)
    assert next_time("0 9 * * *", first, BERLIN) == utc(2026, 10, 25, 8)


def test_an_hour_that_is_skipped_is_made_up_for_and_one_that_comes_twice_counts_once() -> None:
    assert next_time("30 2 * * *", utc(2027, 3, 27, 12), BERLIN) == utc(2027, 3, 28, 1)
    first = next_time("30 2 * * *", utc(2026, 10, 24, 12), BERLIN)
    assert first == utc(2026, 10, 25, 0, 30)
    assert next_time("30 2 * * *", first, BERLIN) == utc(2026, 10, 26, 1, 30)


@given(st.text(max_size=30) | st.from_regex(r"[0-9*/,\-LW#a-z]{1,5}( [0-9*/,\-LW#a-z]{1,5}){4}", fullmatch=True))
def test_whatever_is_written_is_a_time_to_come_or_refused(when: str) -> None:
    try:
        appointment = read_when(when, now=NOW, zone=BERLIN)
    except Refused:
        return
    assert appointment.due_at > NOW
    assert appointment.cron or appointment.due_at <= NOW + FURTHEST


@given(st.datetimes(datetime(2026, 1, 1), datetime(2028, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001 - hypothesis adds the zone
def test_the_next_time_is_always_to_come(after: datetime) -> None:
    for cron in ("30 2 * * *", "*/20 * * * *", "0 */3 * * *"):
        at = next_time(cron, after, BERLIN)
        assert at is not None
        assert after < at
