"""Converts Markdown to Discord's dialect, which is close enough to leave most of a text unchanged.

https://support.discord.com/hc/en-us/articles/210298617
"""

import re

from markdown_it.tree import SyntaxTreeNode

from gateway.text.markdown import Parser, render_table

_MAX_HEADING_LEVEL = 3
# A URL ends before a character that could start a code block, a spoiler or a link within it.
_URL = re.compile(r"(https?://[^\s\\*`~|\[\]<>]+)")
# Characters that are special anywhere, and those that are special at the start of a line. Mentions and dates begin
# with an angle bracket.
_SPECIAL = re.compile(r"([\\*_`~|\[\]<])|^([ \t]*)([#>-])", re.MULTILINE)
_IMAGE_MARK = re.compile(r"!(?=\[[^\]\n]*\]\()")
_FENCE = "```"
_NEWLINE = re.compile("\r\n?|\n")  # The line ends that the parser counts.
_parser = Parser(bool)


def render(markdown: str) -> str:
    """Draw the blocks that Discord cannot show: tables, deep headings, rules and images. Keep the rest as written."""
    lines = _NEWLINE.split(markdown)
    # From the end, so that a replacement does not move the blocks that are still to come.
    for node in reversed(SyntaxTreeNode(_parser.parse(markdown) or []).children):
        if node.map is None:
            continue
        match node.type:
            case "table":  # A fence inside the table would end the code block.
                drawn = "\n".join([_FENCE, render_table(node).replace(_FENCE, "'''"), _FENCE])
            case "heading" if int(node.tag[1:]) > _MAX_HEADING_LEVEL:
                drawn = f"**{node.children[0].content.strip()}**"
            case "hr":
                drawn = "———"
            case "paragraph" if "![" in node.children[0].content:
                drawn = _IMAGE_MARK.sub("", node.children[0].content)
            case _:
                continue
        lines[node.map[0] : node.map[1]] = drawn.split("\n")
    return "\n".join(lines)


def escape(text: str) -> str:
    """Escape `text` so that Discord shows it as it is. Leaves URLs alone: a backslash would become part of them."""
    parts = _URL.split(text)
    # Groups: special anywhere, or indent and special character at the start of a line.
    parts[::2] = [
        _SPECIAL.sub(lambda found: f"\\{found[1]}" if found[1] else f"{found[2]}\\{found[3]}", part)
        for part in parts[::2]
    ]
    return "".join(parts)
