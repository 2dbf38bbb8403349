import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.text import maths
from gateway.text.markdown import render_html

ALLOWED_TAGS = set(
    "p br hr em strong s code pre blockquote ul ol li a table thead tbody tr th td h1 h2 h3 h4 h5 h6".split()  # noqa: SIM905  A list of words reads better than quotes.
)
ALLOWED_ATTRIBUTES = {"href", "title", "rel", "target", "align", "class", "start"}
ALLOWED_SPANS = re.compile(r"hl-[a-z]|formula")
"""The classes of coloured code, and of formulas in lines of their own."""

PAYLOADS = (
    "<script>alert(1)</script>",
    "text <script src=//evil.example/x.js></script> text",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "<svg><script>alert(1)</script></svg>",
    "<a href='javascript:alert(1)'>x</a>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<style>@import url(//evil.example/x.css)</style>",
    "<details open ontoggle=alert(1)>",
    "<math><mi xlink:href='data:x,<script>alert(1)</script>'>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](&#106;avascript:alert(1))",
    "[x](java&#10;script:alert(1))",
    "[x](java\tscript:alert(1))",
    "[x](<javascript:alert(1)>)",
    "[x]( javascript:alert(1))",
    "[x](\x01javascript:alert(1))",
    "[x](vbscript:msgbox(1))",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "[x](data:image/png;base64,AAAA)",
    "[x](file:///etc/passwd)",
    "[x](//evil.example)",
    "[x](/relative)",
    "<javascript:alert(1)>",
    "<data:text/html,x>",
    "[x]\n\n[x]: javascript:alert(1)",
    "![x](javascript:alert(1))",
    "![beacon](https://evil.example/pixel.png)",
    "![beacon](data:image/svg+xml;base64,PHN2Zz4=)",
    "![b][r]\n\n[r]: https://evil.example/pixel.png",
    "[![nested](https://evil.example/a.png)](https://evil.example/b)",
    "![[inner](https://a.example)](https://evil.example/c.png)",
    '[x](https://a.example "onmouseover=alert(1)")',
    '[x](https://a.example "\\" onmouseover=\\"alert(1)")',
    '[x](https://a.example/"onmouseover="alert(1))',
    '![a" onerror="alert(1)](https://evil.example/x.png)',
    '```"><script>alert(1)</script>\ncode\n```',
    "```js\n</code></pre><script>alert(1)</script>\n```",
    "`</code><script>alert(1)</script>`",
    "|<script>|b|\n|:-:|--|\n|<img src=x onerror=alert(1)>|c|",
    "<!-- --><script>alert(1)</script><!-- -->",
    "<<script>script>alert(1)<</script>/script>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "<scr<!-- -->ipt>alert(1)</scr<!-- -->ipt>",
    "<https://a.example/\"onmouseover='alert(1)'>",
    "</div></body><form action=//evil.example><input name=x>",
)


class Page(HTMLParser):
    """What a browser would make of the HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.comments: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)


def assert_harmless(html: str) -> None:
    page = Page(html)
    assert not page.comments
    for tag, attributes in page.tags:
        if tag in maths.TAGS:
            assert set(attributes) <= maths.ATTRIBUTES
            continue
        if tag == "span":
            assert ALLOWED_SPANS.fullmatch(attributes["class"] or "")
            assert attributes.get("tabindex", "0") == "0"
            assert set(attributes) <= {"class", "tabindex"}
            continue
        assert tag in ALLOWED_TAGS
        assert set(attributes) <= ALLOWED_ATTRIBUTES
        if tag == "a":
            assert re.match(r"(https?://|mailto:)", attributes["href"] or "", re.IGNORECASE)
            assert attributes["rel"] == "noopener noreferrer nofollow"
            assert attributes["target"] == "_blank"


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize(
    "wrapping", ["{}", "> {}", "- {}", "**{}**", "# {}", "[{}](https://a.example)", "x\n\n{}\n\ny"]
)
def test_no_payload_becomes_markup(payload: str, wrapping: str) -> None:
    assert_harmless(render_html(wrapping.format(payload)))


@given(st.lists(st.sampled_from(PAYLOADS) | st.sampled_from("[]()<>!`\"'\\&;:\n *_~|-#") | st.text(max_size=5)))
@example(["```js\n</code></pre><script>alert(1)</script>\n```", "<script>alert(1)</script>"])
@example(["\\[", "<script>alert(1)</script>", "\\]"])
def test_no_mixture_of_payloads_becomes_markup(pieces: list[str]) -> None:
    assert_harmless(render_html("".join(pieces)))


@pytest.mark.parametrize(
    ("markdown", "html"),
    [
        ("**bold** *em* ~~gone~~", "<p><strong>bold</strong> <em>em</em> <s>gone</s></p>"),
        ("- one\n- two", "<ul>\n<li>one</li>\n<li>two</li>\n</ul>"),
        ("```\n1 < 2\n```", "<pre><code>1 &lt; 2\n</code></pre>"),
        ("```klingon\n1 < 2\n```", '<pre><code class="language-klingon">1 &lt; 2\n</code></pre>'),
        ("a  \nb", "<p>a<br>\nb</p>"),
        (
            "[docs](https://a.example/?a&b)",
            '<p><a href="https://a.example/?a&amp;b" rel="noopener noreferrer nofollow" target="_blank">docs</a></p>',
        ),
        ("[x](javascript:alert(1))", "<p>[x](javascript:alert(1))</p>"),
        (
            "![a cat](https://a.example/cat.png)",
            '<p><a href="https://a.example/cat.png" rel="noopener noreferrer nofollow" target="_blank">a cat</a></p>',
        ),
        ("[![cat](https://a.example/c.png)](https://b.example)", None),
    ],
)
def test_markdown_is_rendered(markdown: str, html: str | None) -> None:
    rendered = render_html(markdown).strip()
    assert rendered.count("<a ") <= 1
    if html is not None:
        assert rendered == html


def test_table_columns_are_aligned_without_inline_style() -> None:
    html = render_html("|a|b|\n|:-:|--:|\n|1|2|")
    assert '<td align="center">1</td>' in html
    assert "style" not in html


@pytest.mark.parametrize("run", ["[", "*", "`", "![", "> ", "<", "- ", "_*", "|", "[a](", "&#", "~~", "\\"])
@pytest.mark.timeout(20)
def test_hostile_input_is_rendered_quickly(run: str) -> None:
    render_html(run * (20_000 // len(run)))


def test_the_markdown_parser_is_imported_only_when_needed() -> None:
    program = "import sys, gateway.text; sys.exit('markdown_it' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=90).returncode == 0


@pytest.mark.parametrize(
    "markdown",
    [
        "a\n\n[1]: https://kept.example",
        "|a|b|\n|-|-|\n|1|2|kept|",
        ">" * 30 + " kept",
        "[1]: http://a\n[1]: http://kept",
    ],
)
def test_no_text_is_lost(markdown: str) -> None:
    assert "kept" in render_html(markdown)


def test_a_row_with_too_many_cells_keeps_its_last_character() -> None:
    assert "1|2|&lt;kept&gt;\n" in render_html("> |a|b|\n> |-|-|\n> 1|2|<kept>")
