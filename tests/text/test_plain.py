from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text import clean, draw_table, excerpt, printable
from gateway.text.plain import ago, count

STRANGE = (
    "👩‍👩‍👧‍👦 family",
    "🇵🇹🇧🇷 flags",
    "e" + "\u0301" * 1_000,
    "right \u202eto left\u202c",
    "line\u2028paragraph\u2029next\x85end",
    "non-character \uffff",
    "tab\tnew\nline\r\n",
)


@pytest.mark.parametrize("text", STRANGE)
def test_clean_text_stays_byte_exact(text: str) -> None:
    assert clean(text).encode() == text.encode()


@given(st.text(st.characters(exclude_categories=[])))
def test_every_cleaned_text_can_be_stored(text: str) -> None:
    cleaned = clean(text)
    cleaned.encode()
    assert "\0" not in cleaned
    assert len(cleaned) == len(text)


def test_lone_surrogates_and_nul_become_replacement_characters() -> None:
    assert clean("a\ud800b\0c\udfffd") == "a\ufffdb\ufffdc\ufffdd"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "[31mred[0m"),
        ("\x1b]52;c;aGk=\x07paste", "]52;c;aGk=paste"),
        ("\x9b2Jcleared", "2Jcleared"),
        ("first\rsecond", "firstsecond"),
        ("abc\x08\x08\x7f", "abc"),
        ("user\u202etxt.exe", "usertxt.exe"),
        ("\u2066isolated\u2069", "isolated"),
        ("one\n\ttwo", "one\n\ttwo"),
        ("lone \ud800", "lone "),
        ("👩‍👧 é ñ 漢字", "👩‍👧 é ñ 漢字"),
    ],
)
def test_printable_text_contains_no_terminal_commands(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("text", "width", "line"),
    [
        ("short", 10, "short"),
        ("  folded \n\n white\tspace ", 40, "folded white space"),
        ("exactly ten", 11, "exactly ten"),
        ("one more word", 9, "one more…"),
        ("abcdef", 1, "…"),
        ("abcdef", 0, ""),
        ("ab👩‍👩‍👧‍👦cd", 5, "ab…"),
        ("🇵🇹🇧🇷🇪🇸", 4, "🇵🇹…"),
        ("ae\u0301\u0301\u0301f", 4, "a…"),
        ("", 5, ""),
    ],
)
def test_an_excerpt_is_one_line_of_whole_characters(text: str, width: int, line: str) -> None:
    assert excerpt(text, width) == line


@given(st.text(), st.integers(0, 50))
def test_an_excerpt_is_never_too_wide(text: str, width: int) -> None:
    line = excerpt(text, width)
    assert len(line) <= width
    assert len(line.splitlines()) <= 1


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
def test_a_time_ago_is_put_into_words(before: timedelta, words: str) -> None:
    assert ago(NOW - before, NOW) == words


def test_a_count_has_its_plural() -> None:
    assert [count(number, "turn") for number in (0, 1, 2)] == ["0 turns", "1 turn", "2 turns"]


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert draw_table([["a", "b"], ["long", "x"]]) == "a     b\n────  ─\nlong  x"
