"""Coloured code and task lists."""

import re
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pygments.lexers import find_lexer_class_by_name

from gateway.text.highlight import LANGUAGES, MAX_CHARS, highlight
from gateway.text.markdown import render_html

TAG = re.compile(r'</?span(?: class="hl-[a-z]")?>')


def test_code_is_coloured_by_classes_only() -> None:
    html = highlight("def f():  # <b>\n    return 'a'\n", "python")
    assert '<span class="hl-k">def</span> <span class="hl-f">f</span>' in html
    assert '<span class="hl-c"># &lt;b&gt;</span>' in html
    assert "style=" not in html


@pytest.mark.parametrize("language", sorted(LANGUAGES))
def test_every_language_has_a_lexer_that_keeps_the_text(language: str) -> None:
    assert find_lexer_class_by_name(language)
    code = "\n\n  x = <1> & \"'a'\" // # -- \u2028\r\n\tend\n\n"
    assert unescape(TAG.sub("", highlight(code, language))) == code.replace("\r\n", "\n")


@given(st.text(max_size=200))
def test_no_code_adds_an_element(code: str) -> None:
    html = highlight(code, "js")
    assert "<" not in TAG.sub("", html)


def test_long_code_and_unknown_languages_stay_plain() -> None:
    assert highlight("1 < 2", "klingon") == "1 &lt; 2"
    assert "span" not in highlight("x = 1\n" * MAX_CHARS, "python")


def test_code_is_coloured_once_it_is_complete() -> None:
    """Colours for each word that is added would take more time than the answer."""
    assert "span" not in render_html("```py\nx = 1\n")
    assert "span" in render_html("```py\nx = 1\n```")
    assert "span" in render_html("- a\n\n  ```py\n  x = 1\n  ```\n")


def test_task_lists_have_signs() -> None:
    html = render_html("- [ ] open\n- [X] done\n- [link](https://a.example)\n- [y] no")
    assert re.findall(r"<li[^>]*>(.)", html) == ["☐", "☑", "<", "["]
    assert html.count('<li class="task">') == 2
