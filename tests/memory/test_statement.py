"""Memory files can be read and written by people and by Gatehouse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.memory.statement import Archived, LastNumber, Other, Source, Statement, clean, parse, render, words

FILE = """\
# 2026-11-19

- [1] Ada lives in Lisbon. (session 3, seq 14)
- [2] The key is
  under the mat. (noted 2026-11-18)
* a person wrote this
and this (by hand)
- [3] Likes tea. (session 3, seq 20; session 5, seq 2; noted 2026-11-19)
<!-- archived: session 3 (0f3c-1) to seq 57 -->
<!-- last number: 9 -->
<!-- something else -->
"""


def test_a_file_is_read() -> None:
    assert [part for part in parse(FILE) if not isinstance(part, Other)] == [
        Statement(number=1, text="Ada lives in Lisbon.", sources=(Source(3, 14),)),
        Statement(number=2, text="The key is\nunder the mat.", noted="2026-11-18"),
        Statement(text="a person wrote this"),
        Statement(text="and this (by hand)"),
        Statement(number=3, text="Likes tea.", sources=(Source(3, 20), Source(5, 2)), noted="2026-11-19"),
        Archived(session=3, id="0f3c-1", seq=57),
        LastNumber(9),
    ]


def test_headings_comments_and_empty_lines_stay() -> None:
    written = render(parse(FILE)).splitlines()
    assert [line for line in FILE.splitlines() if line not in written] == [
        "* a person wrote this",
        "and this (by hand)",
    ]


def test_a_file_with_the_line_ends_of_windows_is_read() -> None:
    assert parse("- [1] tea (noted 2026-11-19)\r\n- cake\r\n") == [
        Statement(number=1, text="tea", noted="2026-11-19"),
        Statement(text="cake"),
    ]


def test_a_line_without_a_word_is_no_statement() -> None:
    text = "---\n- \n-\n* [ ]\n```\n[]\n___\n- 😀\n- 5\n- ---\n  tea\n- [6] ---\n"
    found = [part for part in parse(text) if isinstance(part, Statement)]
    assert [(each.number, each.text) for each in found] == [(0, "😀"), (0, "5"), (0, "---\ntea"), (6, "---")]
    assert render(parse(text)) == text


@given(st.text(max_size=200), st.booleans(), st.booleans())
def test_no_text_is_taken_for_structure(text: str, is_outline: bool, is_noted: bool) -> None:  # noqa: FBT001 - hypothesis.
    statement = Statement(
        number=7,
        text=clean(text),
        sources=(Source(3, 14),),
        is_outline=is_outline,
        noted="2026-11-19" if is_noted else "",
    )
    assert parse(render([statement])) == [statement]


@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
        ("Ada likes tea.", "ada likes: *TEA*!", True),
        ("Ada is well-known", "Ada is well known", True),
        ("Ada likes C.", "Ada likes C++.", False),
        ("It has 5 degrees", "It has -5 degrees", False),
        ("a < b", "a > b", False),
        ("Ada felt 😀", "Ada felt 😢", False),
        ("It costs 5 €", "It costs 5 $", False),
    ],
)
def test_statements_that_differ_in_punctuation_are_the_same(one: str, other: str, are_same: bool) -> None:  # noqa: FBT001 - pytest.
    assert (words(one) == words(other)) is are_same


@given(st.text(max_size=300))
def test_reading_and_writing_again_changes_nothing(text: str) -> None:
    once = parse(text)
    assert parse(render(once)) == once
