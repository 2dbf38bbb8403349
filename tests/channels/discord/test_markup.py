import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.discord.markup import escape, render


@pytest.mark.parametrize(
    "text",
    [
        "**bold** *it* ~~gone~~ `code` [link](https://a.example)",
        "# One\n## Two\n### Three",
        "- a\n  - b\n1. c",
        "> quote\n\ntext",
        "```python\n| a | b |\n|---|---|\n```",
        "a | b",
        "<b>no tag</b> & 🏳️‍🌈",
    ],
)
def test_what_discord_knows_is_left_alone(text: str) -> None:
    assert render(text) == text


def test_a_table_is_drawn_in_a_block_of_code() -> None:
    text = "before\n\n| a | **b** |\n|---|---|\n| 1 | `x` ``` |\n\nafter"
    assert render(text) == "before\n\n```\na  b\n─  ─────\n1  x '''\n```\n\nafter"


def test_what_discord_has_no_form_for_is_drawn() -> None:
    assert render("#### Four\n\ntext") == "**Four**\n\ntext"
    assert render("a\n\n***\n\nb") == "a\n\n———\n\nb"
    assert render("![a picture](https://a.example/x.png)") == "[a picture](https://a.example/x.png)"


@given(st.text(alphabet="ab |-#*_`>\n!"))
def test_no_word_is_lost(text: str) -> None:
    letters = re.sub(r"[^ab]", "", text)
    assert re.sub(r"[^ab]", "", render(text)) == letters


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("the code XCRJ-25MC", "the code XCRJ-25MC"),
        ("- a\n  # b\n> c - d", "\\- a\n  \\# b\n\\> c - d"),
        ("*a* _b_ at https://a.example/_x_ *c*", r"\*a\* \_b\_ at https://a.example/_x_ \*c\*"),
    ],
)
def test_only_what_has_a_meaning_is_escaped(text: str, escaped: str) -> None:
    assert escape(text) == escaped


@given(st.text().filter(lambda text: "http" not in text))
def test_what_was_escaped_shows_as_it_was(text: str) -> None:
    assert re.sub(r"\\([\\*_`~|>\[\]#-])", r"\1", escape(text)) == text


def test_what_a_table_has_no_column_for_is_shown() -> None:
    assert render("|a|\n|-|\n|1|2|") == "|a|\n|-|\n|1|2|"
    assert "b (https://c.d)" in render("|a|\n|-|\n|[b](https://c.d)|")


def test_lines_that_end_in_another_way_are_counted_as_the_parser_does() -> None:
    assert render("first\rsecond\r\n\r\n#### a\rlast") == "first\nsecond\n\n**a**\nlast"
