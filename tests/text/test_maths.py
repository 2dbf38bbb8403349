"""Formulas: found where they are meant, and safe whatever is in them."""

import re
from html.parser import HTMLParser
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.markdown import render_html

TAG = re.compile(r"<(?!/)(\w+)")


@pytest.mark.parametrize(
    ("markdown", "formulas"),
    [
        ("Let $x^2$ be", ["inline"]),
        (r"Let \(x\) be", ["inline"]),
        ("Let $x$, $y$ and ($z$).", ["inline"] * 3),
        ("so $$x = 1$$ holds", ["block"]),
        ("$$\nx\n$$", ["block"]),
        ("\\[\nx\n= y\n- z\n\\]", ["block"]),
        ("- a\n  $$\n  x\n  $$\n- b", ["block"]),
        ("It costs $5 and $10.", []),
        ("$HOME/$USER and US$5 or 5$", []),
        ("$ x $", []),
        ("$$", []),
        (r"\$x\$", []),
        ("`$x$`", []),
        ("```\n$$\nx\n$$\n```", []),
        ("[$x$](https://a.example)", ["inline"]),
        (r"\[ not closed", []),
    ],
)
def test_formulas_are_found(markdown: str, formulas: list[str]) -> None:
    assert re.findall(r'<math display="(\w+)">', render_html(markdown)) == formulas


def test_a_formula_becomes_mathml() -> None:
    html = render_html(r"$\frac{a}{b}$")
    assert "<mfrac><mrow><mi>a</mi></mrow><mrow><mi>b</mi></mrow></mfrac>" in html


ATTACKS = [
    r"\href{javascript:alert(1)}{x}",
    r"\text{<script>alert(1)</script>}",
    r"\text{&lt;script&gt;alert(1)&lt;/script&gt;}",
    r"\style{background:url(http://evil.example)}{x}",
    r"\class{x}{y}",
    r"\color{red;background:url(http://evil.example)}{x}",
    r"\includegraphics{http://evil.example}",
    r"\mathbf{<img src=x onerror=alert(1)>}",
    r"\begin{array}{c\" onclick=\"alert(1)}x\end{array}",
    r"\rule{1\" onclick=\"alert(1)}{1em}",
    r"\newcommand{\a}{\a}\a",
    "<svg/onload=alert(1)>",
    "{" * 900,
    r"\sqrt" * 300,
]


class Elements(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("frame", ["${}$", "$$\n{}\n$$", r"\({}\)"])
def test_hostile_formulas_have_no_effect(attack: str, frame: str) -> None:
    check(render_html(frame.replace("{}", attack)))


@given(st.text(alphabet=r"\{}^_&$[]<>\"'= abxfracsqrtlefthrefstylecolor#%", max_size=80))
def test_any_formula_is_safe(source: str) -> None:
    check(render_html(f"\\({source}\\)"))


def check(html: str) -> None:
    found = Elements(html)
    assert found.tags <= {"p", "span", "code", "strong", "em"} | {tag for tag in found.tags if tag.startswith("m")}
    assert not found.attributes & {"href", "style", "class", "onclick", "onload", "onerror", "src"} - {"class"}
    assert 'href="' not in html


@pytest.mark.parametrize("text", ["$$\n" * 20_000, "\\[\n" * 20_000, "\\(" * 50_000, "$a " * 30_000, "$x^2$ " * 2_000])
def test_many_formulas_take_no_long_time(text: str) -> None:
    started = monotonic()
    render_html(text)
    assert monotonic() - started < 20
