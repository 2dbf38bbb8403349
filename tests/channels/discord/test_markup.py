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
def test_markdown_that_discord_supports_is_unchanged(text: str) -> None:
    assert render(text) == text


def test_a_table_is_drawn_in_a_code_block() -> None:
    text = "before\n\n| a | **b** |\n|---|---|\n| 1 | `x` ``` |\n\nafter"
    assert render(text) == "before\n\n```\na  b\n─  ─────\n1  x '''\n```\n\nafter"


def test_unsupported_blocks_are_replaced() -> None:
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
        ("https://a.example/||hidden|| x```y", r"https://a.example/\|\|hidden\|\| x\`\`\`y"),
        ("<t:1:R> <@1>", r"\<t:1:R> \<@1>"),
    ],
)
def test_only_special_characters_are_escaped(text: str, escaped: str) -> None:
    assert escape(text) == escaped


@given(st.text().filter(lambda text: "http" not in text))
def test_escaped_text_shows_unchanged(text: str) -> None:
    assert re.sub(r"\\([\\*_`~|<>\[\]#-])", r"\1", escape(text)) == text


def test_a_table_keeps_extra_cells_and_link_targets() -> None:
    assert render("|a|\n|-|\n|1|2|") == "|a|\n|-|\n|1|2|"
    assert "b (https://c.d)" in render("|a|\n|-|\n|[b](https://c.d)|")


def test_all_kinds_of_line_ends_are_counted_as_the_parser_does() -> None:
    assert render("first\rsecond\r\n\r\n#### a\rlast") == "first\nsecond\n\n**a**\nlast"
