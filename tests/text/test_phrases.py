from datetime import UTC, datetime, timedelta

import pytest

from gateway.text.plain import ago, count

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (timedelta(seconds=5), "just now"),
        (timedelta(seconds=-5), "just now"),
        (timedelta(minutes=3), "3 min ago"),
        (timedelta(hours=2), "2 h ago"),
        (timedelta(hours=30), "yesterday"),
        (timedelta(days=9), "9 d ago"),
    ],
)
def test_says_how_long_ago(before: timedelta, words: str) -> None:
    assert ago(NOW - before, NOW) == words


def test_counts_in_words() -> None:
    assert [count(number, "turn") for number in (0, 1, 2)] == ["0 turns", "1 turn", "2 turns"]
