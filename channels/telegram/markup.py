"""Renders Markdown as the subset of HTML that Telegram knows: https://core.telegram.org/bots/api#html-style."""

import html
import re
from collections.abc import Iterator, Sequence

from markdown_it.tree import SyntaxTreeNode

from gateway.text import utf16_length
from gateway.text.markdown import Parser, render_table

_SCHEMES = ("http://", "https://", "mailto:", "tg://")
_TAGS = {"strong": "b", "em": "i", "s": "s"}
_TAG = re.compile(r"<[^>]*>")
_LANGUAGE = re.compile(r"[A-Za-z0-9_+#.-]{1,32}")

# What a text without Markdown does not contain: a mark of inline markup, a line that starts with anything but a letter,
# or whitespace that the parser would normalise.
_MARKUP = re.compile(r"[\\`*_\[\]<&~|\x00-\x09\x0b-\x1f]|^[^\w\n]|^\d|[^\S\n]$|\A\n|\n\Z|\n{3}", re.MULTILINE)

_parser = Parser(lambda url: url.strip().lower().startswith(_SCHEMES))


def is_plain(markdown: str) -> bool:
    """Return whether a text is certainly free of Markdown, so that it looks the same without being rendered."""
    return _MARKUP.search(markdown) is None


def render(markdown: str) -> str:
    """Render CommonMark with tables and strikethrough as HTML. HTML in the source is shown as text."""
    tokens = _parser.parse(markdown)
    return html.escape(markdown) if tokens is None else _blocks(SyntaxTreeNode(tokens).children)


def visible_length(rendered: str) -> int:
    """Return the length that Telegram counts: without tags, in UTF-16 units."""
    # Text is escaped, so everything that looks like a tag is one.
    return utf16_length(html.unescape(_TAG.sub("", rendered)).strip())


def _blocks(nodes: Sequence[SyntaxTreeNode], *, is_quoted: bool = False) -> str:
    return "\n\n".join(text for node in nodes if (text := _block(node, is_quoted=is_quoted)))


def _block(node: SyntaxTreeNode, *, is_quoted: bool) -> str:
    match node.type:
        case "heading":
            return f"<b>{_inlines(node)}</b>"
        case "bullet_list" | "ordered_list":
            return "\n".join(_list_lines(node, depth=0, is_quoted=is_quoted))
        case "blockquote":
            inside = _blocks(node.children, is_quoted=True)
            return inside if is_quoted else f"<blockquote>{inside}</blockquote>"  # Telegram's quotes cannot be nested.
        case "fence" | "code_block":
            code = html.escape(node.content.removesuffix("\n"))
            language = node.info.split(maxsplit=1)[0] if node.info.strip() else ""
            if _LANGUAGE.fullmatch(language):
                return f'<pre><code class="language-{language}">{code}</code></pre>'
            return f"<pre>{code}</pre>"
        case "table":
            return f"<pre>{html.escape(render_table(node))}</pre>"
        case "hr":
            return "———"
        case _:
            return _inlines(node)


def _list_lines(node: SyntaxTreeNode, *, depth: int, is_quoted: bool) -> Iterator[str]:
    """Yield the lines of a list. Telegram has no lists, so bullets and numbers are written as text."""
    first = int(node.attrs.get("start", 1))
    indent = "   " * depth
    for number, item in enumerate(node.children, first):
        marker = f"{number}." if node.type == "ordered_list" else "•"
        lead = f"{indent}{marker} "
        if not item.children:
            yield lead.rstrip()
        for child in item.children:
            if child.type.endswith("_list"):
                yield from ([lead.rstrip()] if lead.strip() else [])
                yield from _list_lines(child, depth=depth + 1, is_quoted=is_quoted)
            else:
                yield f"{lead}{_block(child, is_quoted=is_quoted)}"
            lead = f"{indent}   "


def _inlines(node: SyntaxTreeNode) -> str:
    return "".join(_inline(child) for child in node.children)


def _inline(node: SyntaxTreeNode) -> str:
    match node.type:
        case "text":
            return html.escape(node.content)
        case "softbreak" | "hardbreak":
            return "\n"
        case "code_inline":
            return f"<code>{html.escape(node.content)}</code>"
        case "link":
            return _link(str(node.attrs.get("href", "")), _inlines(node))
        case "image":
            # Shown as a link, unless it already is the label of one: Telegram's links cannot be nested.
            source = str(node.attrs.get("src", ""))
            label = html.escape(node.content or source)
            return label if node.parent is not None and node.parent.type == "link" else _link(source, label)
        case kind if kind in _TAGS:
            return f"<{_TAGS[kind]}>{_inlines(node)}</{_TAGS[kind]}>"
        case _:
            return _inlines(node)


def _link(target: str, label: str) -> str:
    return f'<a href="{html.escape(target)}">{label or html.escape(target)}</a>'
