import itertools
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.text import split, utf16_length
from gateway.text.splitting import GrowingText, first_parts

FRAGMENTS = st.sampled_from(
    [
        "```python\n",
        "```\n",
        "\n```",
        "~~~~\n",
        "  ```js title=x\n",
        "`code`",
        "- item\n",
        "word ",
        "Sentence. ",
        "\n\n",
        "x" * 30,
        "👩‍👩‍👧‍👦",
        "🇵🇹",
        "e\u0301\u0301",
        "。",
        "\r\n",
    ]
)
MARKDOWN = st.lists(FRAGMENTS | st.text(max_size=10), max_size=40).map("".join)
MEASURES = st.sampled_from([len, utf16_length])


def is_subsequence(text: str, of: str) -> bool:
    rest = iter(of)
    return all(character in rest for character in text)


@given(MARKDOWN, st.integers(2, 80), MEASURES)
def test_no_part_is_too_long(text: str, size: int, measure: Callable[[str], int]) -> None:
    assert all(0 < measure(part) <= size for part in split(text, size, measure))


@given(MARKDOWN, st.integers(2, 80), MEASURES)
@example("a" * 10 + "```python\n" + "b" * 10, 12, len)
def test_the_parts_contain_the_whole_text_in_order(text: str, size: int, measure: Callable[[str], int]) -> None:
    visible = "".join(text.split())
    assert is_subsequence(visible, "".join(split(text, size, measure)))


@given(st.text(st.characters(exclude_characters="`~", exclude_categories=["Z", "Cc"]) | st.sampled_from(" \n")))
def test_text_without_fences_is_cut_but_not_changed(text: str) -> None:
    parts = split(text, 7)
    assert all(part.strip() for part in parts)
    assert "".join("".join(parts).split()) == "".join(text.split())


@given(MARKDOWN, st.integers(20, 80))
def test_every_part_but_the_last_closes_its_fences(text: str, size: int) -> None:
    parts = split("```python\n" + text.replace("`", "").replace("~", "") + "\n```", size)
    for part in parts:
        assert part.count("```") == 2


@pytest.mark.parametrize(
    ("text", "size", "parts"),
    [
        ("", 10, []),
        (" \n\n ", 10, []),
        ("fits", 4, ["fits"]),
        ("one two three", 8, ["one two ", "three"]),
        ("First one. Second one here", 18, ["First one. ", "Second one here"]),
        ("para one\n\npara two\nline", 14, ["para one\n\n", "para two\nline"]),
        ("- item one\n- item two\n- item three", 24, ["- item one\n- item two\n", "- item three"]),
        ("short\n" + "x" * 20, 10, ["short\n", "x" * 10, "x" * 10]),
        ("x" * 10 + "\n\n", 10, ["x" * 10]),
        ("これは文です。次の文です。終わり", 14, ["これは文です。次の文です。", "終わり"]),
    ],
)
def test_cuts_are_at_natural_breaks(text: str, size: int, parts: list[str]) -> None:
    assert split(text, size) == parts


@pytest.mark.parametrize(
    "whole", ["👩‍👩‍👧‍👦", "🇵🇹", "e\u0301\u0302\u0303", "👍🏽", "각", "🏴\U000e0067\U000e0062\U000e007f"]
)
@pytest.mark.parametrize("shift", range(8))
def test_a_visible_character_is_never_torn_apart(whole: str, shift: int) -> None:
    parts = split("x" * shift + whole * 20, 20)
    assert all(part.replace(whole, "").strip("x") == "" for part in parts)


def test_a_run_of_combining_marks_longer_than_a_part_is_cut() -> None:
    text = "e" + "\u0301" * 1_000
    assert "".join(split(text, 100)) == text


@pytest.mark.parametrize(("size", "count"), [(4096, 1), (4095, 2), (4097, 1)])
def test_telegram_counts_in_utf16(size: int, count: int) -> None:
    parts = split("😀" * 2048, size, utf16_length)
    assert len(parts) == count


def test_a_fence_is_closed_and_opened_again_with_its_language() -> None:
    code = "".join(f"line {number}\n" for number in range(20))
    parts = split(f"Look:\n\n```python\n{code}```\nThat is all.", 80)
    assert len(parts) > 2
    assert parts[0].startswith("Look:\n\n```python\nline 0\n")
    assert parts[0].endswith("\n```")
    assert parts[1].startswith("```python\nline ")
    assert parts[-1].endswith("```\nThat is all.")


def test_a_shorter_fence_inside_a_longer_one_is_code() -> None:
    parts = split("````md\n" + "```py\nx = 1\n```\n" * 5 + "````", 40)
    assert all(part.startswith("````md\n") and part.endswith("````") for part in parts)


def test_an_opening_fence_line_stays_with_its_code() -> None:
    assert split("Some words here:\n```py\nx = 1\ny = 2\n```", 30) == ["Some words here:\n", "```py\nx = 1\ny = 2\n```"]


def test_a_closing_fence_line_stays_with_its_code() -> None:
    parts = split("```py\nx = 1\ny = 2\nz = 3\n```\nDone with the code.", 28)
    assert parts == ["```py\nx = 1\ny = 2\nz = 3\n```\n", "Done with the code."]


def test_an_info_string_longer_than_a_part_does_not_stop_the_split() -> None:
    text = "```" + "info" * 50 + "\n" + "code " * 50 + "\n```"
    parts = split(text, 40)
    assert all(len(part) <= 40 for part in parts)
    assert is_subsequence("".join(text.split()), "".join(parts))


@pytest.mark.timeout(20)
def test_splitting_takes_time_proportional_to_the_length() -> None:
    """Each part looks only at its own neighbourhood."""
    text = ("All work and no play makes a long text. " * 20 + "\n\n") * 1_300
    parts = split(text, 2_000, utf16_length)
    assert sum(map(len, parts)) == len(text)


def test_a_marker_within_a_line_opens_no_fence() -> None:
    assert split("word ```py word word word", 5) == ["word ", "```py", "word ", "word ", "word"]


def test_a_size_of_zero_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        split("text", 0)


def test_every_cut_of_a_long_word_makes_progress() -> None:
    lengths = [len(part) for part in split("x" * 1_000, 3)]
    assert sum(lengths) == 1_000
    assert all(itertools.pairwise(lengths))


@given(MARKDOWN, st.integers(20, 80), MEASURES, st.integers(1, 30))
def test_the_finished_parts_of_a_growing_text_are_those_of_the_whole_text(
    text: str, size: int, measure: Callable[[str], int], step: int
) -> None:
    growing, finished = GrowingText(size, measure), []
    for end in [*range(step, len(text), step), len(text)]:
        while (part := growing.finished_part(text[:end])) is not None:
            finished.append(part)
            growing.next_part(text[:end])
        assert measure(growing.unfinished_part(text[:end])) <= size
    assert split(text, size, measure)[: len(finished)] == finished
    assert len(finished) >= measure(text) // size - 1 or "`" in text or "~" in text


@given(MARKDOWN, st.integers(10, 80), st.integers(1, 5))
def test_the_first_parts_are_a_beginning_with_closed_fences(text: str, size: int, count: int) -> None:
    beginning = first_parts(text, count, size)
    kept = beginning.rstrip("`~").rstrip()
    assert text.startswith(kept)
    assert len(beginning) <= count * size + 10
