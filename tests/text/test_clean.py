import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text import clean, excerpt, printable

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
def test_whatever_comes_in_can_be_stored(text: str) -> None:
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
def test_a_terminal_shows_text_and_obeys_none_of_it(text: str, shown: str) -> None:
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
def test_an_excerpt_is_one_line_and_tears_nothing_apart(text: str, width: int, line: str) -> None:
    assert excerpt(text, width) == line


@given(st.text(), st.integers(0, 50))
def test_an_excerpt_is_never_too_wide(text: str, width: int) -> None:
    line = excerpt(text, width)
    assert len(line) <= width
    assert len(line.splitlines()) <= 1
