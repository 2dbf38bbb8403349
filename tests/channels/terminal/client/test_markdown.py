import re
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from channels.terminal.client.markdown import TerminalText

SGR = re.compile(r"\x1b\[[0-9;]*m")
WIDTH = 40
style = TerminalText(has_colour=True)


def shown(text: str, width: int = WIDTH) -> list[str]:
    """Return the lines without their styles."""
    return [SGR.sub("", line) for line in style.markdown(text, width)]


@pytest.mark.parametrize(
    ("markdown", "lines"),
    [
        ("# Title\n\nText.", ["Title", "", "Text."]),
        ("one\ntwo  \nthree", ["one two", "three"]),
        ("- a\n- b\n  - c\n", ["• a", "• b", "  • c"]),
        ("9. a\n10. b", [" 9. a", "10. b"]),
        ("- a\n\n- b", ["• a", "", "• b"]),
        ("> quoted\n>\n> twice", ["│ quoted", "│", "│ twice"]),
        ("```python\nif x:\n    y()\n```", ["    python", "    if x:", "        y()"]),
        ("[here](https://a.example/) <https://b.example/>", ["here (https://a.example/)", "https://b.example/"]),
        ("![a cat](https://a.example/cat.png)", ["a cat (https://a.example/cat.png)"]),
        ("<b>bold</b> and <script>", ["<b>bold</b> and <script>"]),
        ("| a | b |\n|---|--:|\n| 1 | 2 |", ["a   b", "─────", "1   2"]),
        ("a\n\n---\n\nb", ["a", "", "─" * WIDTH, "", "b"]),
    ],
)
def test_markdown_is_laid_out(markdown: str, lines: list[str]) -> None:
    assert [line.rstrip() for line in shown(markdown)] == lines


def test_a_table_with_too_many_columns_becomes_a_list_of_its_rows() -> None:
    names = [f"name{number}" for number in range(8)]
    rows = [[f"value{number}{row}" for number in range(8)] for row in "ab"]
    table = "\n".join("|".join(cells) for cells in (names, ["---"] * 8, *rows))
    pairs = [[f"{name}: {value}" for name, value in zip(names, row, strict=True)] for row in rows]
    assert shown(table) == [*pairs[0], "", *pairs[1]]
    assert shown(table, 100)[2].split() == rows[0]
    assert shown("|".join(names) + "\n" + "|".join(["---"] * 8)) == names


def test_styles_are_escape_sequences() -> None:
    assert style.markdown("**b** *i* `c` ~~s~~", WIDTH) == [
        "\x1b[1mb\x1b[0m \x1b[3mi\x1b[0m \x1b[36mc\x1b[0m \x1b[9ms\x1b[0m"
    ]


def test_without_colour_there_are_no_colours() -> None:
    plain = "\n".join(TerminalText(has_colour=False).markdown("# h\n\n**b** `c`\n\n```\ncode\n```", WIDTH))
    assert re.findall(r"\x1b\[[0-9;]*m", plain)
    assert not re.search(r"\x1b\[[0-9;]*\b(3[0-7]|4[0-7]|9[0-7]|38|48)\b", plain)


def test_lines_are_wrapped_at_words() -> None:
    words = [f"word{number}" for number in range(50)]
    lines = shown(" ".join(words))
    assert max(map(len, lines)) <= WIDTH
    assert " ".join(lines).split() == words
    assert " ".join(style.plain(" ".join(words), WIDTH)).split() == words


@given(st.text())
def test_escape_sequences_of_the_text_are_removed(text: str) -> None:
    for lines in (style.markdown(f"a {text}\x1b[2J\x1b]0;owned\x07\x9b31m b", WIDTH), style.plain(text, WIDTH)):
        rest = SGR.sub("", "\n".join(lines))
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", rest)


@example(["```a"])
@given(
    st.lists(
        st.sampled_from([*"abc", " ", "\n", "\n\n", "*", "`", "#", "- ", "> ", "|", "|-|\n", "1. ", "[", "](x)", "!"])
    )
)
def test_no_letter_is_lost(pieces: list[str]) -> None:
    text = "".join(pieces)
    said, seen = Counter(re.findall("[abc]", text)), Counter(re.findall("[abc]", "".join(shown(text))))
    assert said <= seen


@given(st.lists(st.sampled_from(["a", "b\n", "\n", "# h\n", "- x\n", "```\n", "> q\n", "  "])), st.data())
def test_complete_blocks_stay_the_same(pieces: list[str], data: st.DataObject) -> None:
    text = "".join(pieces)
    length = style.complete_length(text)
    assert 0 <= length <= len(text)
    more = text + data.draw(st.sampled_from(["", "a", "\n", "\n\na", "- x", "```\n"]))
    assert shown(more[:length]) + ([""] if length else []) + shown(more[length:]) == shown(more)
