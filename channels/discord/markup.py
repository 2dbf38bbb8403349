"""Markdown to Discord's dialect of it, which is near enough to leave most of a text alone.

https://support.discord.com/hc/en-us/articles/210298617
"""

import re

from markdown_it.tree import SyntaxTreeNode

from gateway.text.parsing import Parser, drawn_table

_DEEPEST_HEADING = 3
_URL = re.compile(r"(https?://\S+)")
_SPECIAL = re.compile(r"([\\*_`~|\[\]])|^([ \t]*)([#>-])", re.MULTILINE)
"""What has a meaning anywhere, and what has one where a line begins."""
_IMAGE = re.compile(r"!(?=\[[^\]\n]*\]\()")
_FENCE, _NO_FENCE = "```", "'''"
_NEWLINE = re.compile("\r\n?|\n")
"""What the parser takes for the end of a line."""


def render(markdown: str) -> str:
    """Draw what Discord has no form for: tables, deep headings, rules, images. All else stays as it is written."""
    lines = _NEWLINE.split(markdown)
    for node in reversed(SyntaxTreeNode(_parser.parse(markdown) or []).children):
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
            return f"{_FENCE}\n{drawn_table(node).replace(_FENCE, _NO_FENCE)}\n{_FENCE}"
        case "heading" if int(node.tag[1:]) > _DEEPEST_HEADING:
            return f"**{node.children[0].content.strip()}**"
        case "hr":
            return "———"
        case "paragraph" if "![" in node.children[0].content:
            return _IMAGE.sub("", node.children[0].content)
    return None


_parser = Parser(bool)
