import html

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.telegram.markup import is_plain, render, visible_length
from gateway.text import utf16_length
from tests.channels.telegram.bot_api import is_html, links, visible

PIECES = st.sampled_from(
    [
        *("**", "*", "_", "~~", "`", "```", "```py\n", "\n", "\n\n", "> ", ">> ", "- ", "1. ", "   ", "# ", "---\n"),
        *("| a | b |\n|---|---|\n| 1 |\n", "[x](https://a.b/?c&d)", "[x](javascript:alert(1))", "![i](http://a/b.png)"),
        *(
            "<b>",
            "</b>",
            "&amp;",
            "<!--",
            "\\",
            "😀",
            "word",
            " ",
            "[![i](http://a)](http://b)",
            '"',
            "[x](tg://user?id=1)",
        ),
    ]
)
EDGES = st.sampled_from(
    [
        *("a", "Word", "é", "ß", "1", "1)", "2.", "+ ", "- ", "=", "===", "---", "\n", "\n\n", " ", "  ", "\t", "\r"),
        *(
            "\xa0",
            "\u2028",
            "\x85",
            "\x0c",
            "\x00",
            "!",
            "(",
            ")",
            "#",
            ">",
            ":",
            "://",
            "www.",
            "@",
            "^",
            "$",
            "{",
            "}",
            '"',
        ),
    ]
)


@pytest.mark.parametrize(
    ("markdown", "html"),
    [
        ("**a** *b* ~~c~~ `d<`", "<b>a</b> <i>b</i> <s>c</s> <code>d&lt;</code>"),
        ("# Title\ntext", "<b>Title</b>\n\ntext"),
        ("```py title\nif a < b:\n```", '<pre><code class="language-py">if a &lt; b:</code></pre>'),
        ("```\ncode\n```", "<pre>code</pre>"),
        ('```a"b\ncode\n```', "<pre>code</pre>"),
        ("[a *b*](https://c.d/?e&f)", '<a href="https://c.d/?e&amp;f">a <i>b</i></a>'),
        ("[a](javascript:b)", "[a](javascript:b)"),
        ("![picture](https://a/b.png)", '<a href="https://a/b.png">picture</a>'),
        ("> quote\n> > inner\n\nafter", "<blockquote>quote\n\ninner</blockquote>\n\nafter"),
        ("- a\n- b\n  - c\n\n  more", "• a\n• b\n   • c\n   more"),
        ("3. a\n4. b", "3. a\n4. b"),
        ("- - a\n-", "•\n   • a\n•"),
        ("| a | long |\n|---|---|\n| `1` | 2 |", "<pre>a  long\n─  ────\n1  2</pre>"),
        ("<script>x</script> & y", "&lt;script&gt;x&lt;/script&gt; &amp; y"),
        ("a\nb  \nc\n\n---", "a\nb\nc\n\n———"),
        ("[a][1]\n\n[1]: https://b.c", '<a href="https://b.c">a</a>'),
        ("a\n\n[1]: https://b.c", "a\n\n[1]: https://b.c"),
        ("[](https://a.b)", '<a href="https://a.b">https://a.b</a>'),
        ("|a|b|\n|-|-|\n|1|2|3|", "<pre>|a|b|\n|-|-|\n|1|2|3|</pre>"),
        ("|a|\n|-|\n|[b](https://c.d)|", f"<pre>a\n{'─' * 15}\nb (https://c.d)</pre>"),
        (">" * 30 + " a", "&gt;" * 30 + " a"),
        ("", ""),
    ],
)
def test_markdown_becomes_html_that_telegram_supports(markdown: str, html: str) -> None:
    assert render(markdown) == html


@given(st.lists(PIECES | st.text(max_size=5), max_size=30).map("".join))
def test_any_markdown_renders_as_html_that_telegram_can_parse(markdown: str) -> None:
    html = render(markdown)
    assert is_html(html)
    assert all(link.startswith(("http://", "https://", "mailto:", "tg://")) for link in links(html))


@given(
    st.lists(
        st.sampled_from(
            [
                *("{} ", "**{}** ", "`{}`", "\n", "\n\n", "\n> ", "\n- ", "\n  - ", "\n1. ", "\n# ", "\n---\n", "    "),
                *(
                    "\n[{}]: https://{}.org\n",
                    "[{}]",
                    "[{}](https://{}.org)",
                    "[](https://{}.org)",
                    "![](https://{}.org)",
                ),
                *("\n```\n{}\n```\n", "\n\n| {} | {} |\n|--|--|\n| {} | {} | {} |\n| [{}](https://{}.org) |\n", "<{}>"),
            ]
        ),
        max_size=25,
    )
)
def test_rendering_drops_no_word(pieces: list[str]) -> None:
    markdown = "".join(pieces)
    words = [f"word{number}x" for number in range(markdown.count("{}"))]
    shown = render(markdown.format(*words))
    assert [word for word in words if word not in shown] == []


@given(st.lists(PIECES, max_size=30).map("".join))
def test_the_visible_length_ignores_tags(markdown: str) -> None:
    html = render(markdown)
    assert visible_length(html) == utf16_length(visible(html).strip())


@pytest.mark.parametrize(
    "text",
    [
        "Good day!",
        "It's 3 > 2, isn't it?\nYes (see https://a.b/c-d).",
        "One.\n\nÜber two, a + b = c #4: - yes",
        "日本語。",
    ],
)
def test_a_text_without_markdown_is_plain(text: str) -> None:
    assert is_plain(text)


@given(st.one_of(st.text(), st.lists(st.one_of(PIECES, EDGES, st.text(max_size=2))).map("".join)))
def test_a_plain_text_is_its_own_rendering(text: str) -> None:
    assert not is_plain(text) or not text or render(text) == html.escape(text)
