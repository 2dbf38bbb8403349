"""What people write after `/schedule add`."""

from datetime import UTC, datetime

import pytest

from gateway.errors import Refused
from gateway.scheduler.recurrence import parse_recurrence, parse_span
from gateway.schedules.grammar import split_addition
from gateway.spool import Recurrence

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)


def parsed(when: str) -> Recurrence:
    return parse_recurrence(when, now=NOW, zone=UTC, zone_name="", min_interval=60)


@pytest.mark.parametrize(
    ("text", "cron"),
    [
        ("every morning at 8, look at the news", "0 8 * * *"),
        ("every day at 8:00 look at the news", "0 8 * * *"),
        ("daily 8:00 look at the news", "0 8 * * *"),
        ("Every weekday at 8am look at the news", "0 8 * * 1-5"),
        ("weekdays 12 am look at the news", "0 0 * * 1-5"),
        ("weekends at 12:30 pm look at the news", "30 12 * * 6,0"),
        ("every monday at 9:30 look at the news", "30 9 * * 1"),
        ("sundays 21.15, look at the news", "15 21 * * 0"),
        ("0 8 1 * * look at the news", "0 8 1 * *"),
        ('"0 8 1 * *" look at the news', "0 8 1 * *"),
    ],
)
def test_days_and_a_time_become_a_cron_line(text: str, cron: str) -> None:
    when, _, prompt = split_addition(text)
    assert parsed(when) == Recurrence(cron=cron)
    assert prompt == "look at the news"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("every 30m look", 1_800),
        ("every 10 mins, look", 600),
        ("every 2 hrs look", 7_200),
        ("every day look", 86_400),
        ("every minute look", 60),
        ("every 2 weeks look", 1_209_600),
        ('"every 2h" look', 7_200),
    ],
)
def test_an_interval_counts_from_now_on(text: str, seconds: float) -> None:
    when, _, prompt = split_addition(text)
    assert parsed(when) == Recurrence(every=seconds, start=NOW)
    assert prompt == "look"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("every 2 months look", "Begin with the time"),  # Not every two minutes.
        ("every 1st monday look", "Begin with the time"),  # Not every second.
        ("daily 8 times look", "Begin with the time"),
        ("daily 13pm look", "Begin with the time"),
        ("every day at noon look", "after every day: at noon"),
        ("every week on monday at 8 look", "after every week: on monday"),
    ],
)
def test_a_time_that_is_not_understood_is_refused_instead_of_becoming_the_prompt(text: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        split_addition(text)


def test_a_prompt_may_begin_like_a_time_after_a_quoted_interval() -> None:
    assert split_addition('"every day" at noon, look') == ("every day", {}, "at noon, look")


def test_options_stand_between_the_time_and_the_prompt() -> None:
    text = 'daily 8:00 zone=Europe/Berlin check="test -s a b" tell me a=b'
    assert split_addition(text) == ("daily 8:00", {"zone": "Europe/Berlin", "check": "test -s a b"}, "tell me a=b")


@pytest.mark.parametrize("text", ["3 months", "5 mx", "1 dozen", "m"])
def test_an_unknown_unit_is_no_duration(text: str) -> None:
    with pytest.raises(Refused, match="is not a duration"):
        parse_span(text)
