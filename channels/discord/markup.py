"""Markdown to Discord's dialect of it, which is near enough to leave most of a text alone.

https://support.discord.com/hc/en-us/articles/210298617
"""

import re
from collections.abc import Iterator, Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode

from gateway.text import draw_table

__all__ = ["escape", "render"]

_DEEPEST_HEADING = 3
_URL = re.compile(r"(https?://\S+)")
_SPECIAL = re.compile(r"([\\*_`~|\[\]])|^([ \t]*)([#>-])", re.MULTILINE)
"""What has a meaning anywhere, and what has one where a line begins."""
_IMAGE = re.compile(r"!(?=\[[^\]\n]*\]\()")
_FENCE = "```"


def render(markdown: str) -> str:
    """Draw what Discord has no form for: tables, deep headings, rules, images. All else stays as it is written."""
    lines = markdown.split("\n")
    for node in reversed(SyntaxTreeNode(_parser.parse(markdown)).children):
        if node.map is not None and (drawn := _drawn(node)) is not None:
            lines[node.map[0] : node.map[1]] = drawn.split("\n")
    return "\n".join(lines)


def escape(text: str) -> str:
    """Have Discord show `text` as it is; in an address, a backslash would be part of it."""
    parts = _URL.split(text)
    parts[::2] = [_SPECIAL.sub(_escaped, words) for words in parts[::2]]
    return "".join(parts)


def _escaped(found: re.Match[str]) -> str:
    anywhere, indent, at_start = found.groups()
    return f"\\{anywhere}" if anywhere else f"{indent}\\{at_start}"


def _drawn(node: SyntaxTreeNode) -> str | None:
    """Return how a block is shown; None where Discord shows it by itself."""
    match node.type:
        case "table":
            return f"{_FENCE}\n{_table(node)}\n{_FENCE}"
        case "heading" if int(node.tag[1:]) > _DEEPEST_HEADING:
            return f"**{node.children[0].content.strip()}**"
        case "hr":
            return "———"
        case "paragraph" if "![" in node.children[0].content:
            return _IMAGE.sub("", node.children[0].content)
    return None


def _table(node: SyntaxTreeNode) -> str:
    rows = [[_plain(cell) for cell in row.children] for part in node.children for row in part.children]
    return draw_table(rows).replace(_FENCE, "'''")


def _plain(cell: SyntaxTreeNode) -> str:
    inline = cell.children[0].token if cell.children else None
    return "".join(_texts(inline.children or ())) if inline is not None else ""


def _texts(tokens: Sequence[Token]) -> Iterator[str]:
    for token in tokens:
        if token.type in {"text", "code_inline", "image"}:
            yield token.content
        elif token.type in {"softbreak", "hardbreak"}:
            yield " "


def _build_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False})
    parser.enable(["table"])
    return parser


_parser = _build_parser()
