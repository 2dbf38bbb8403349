"""Markdown to HTML that can be put into a page: whatever the text says, it can only be shown."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode
from markdown_it.utils import EnvType, OptionsDict

from gateway.text.plain import draw_table

_MAX_DEPTH = 20
"""Blocks within blocks; the parser drops what lies deeper."""
_CONTAINERS = {"blockquote_open", "list_item_open"}
_BORDER = re.compile(r"(?<!\\)\|")
_MARGIN = " \t>"


class Parser:
    """CommonMark with tables and strikethrough; HTML in it is text. One serves all threads."""

    def __init__(self, is_safe_link: Callable[[str], bool]) -> None:
        self._markdown = _markdown(is_safe_link)
        self._without_definitions = _markdown(is_safe_link).disable("reference")

    @property
    def options(self) -> OptionsDict:
        return self._markdown.options

    def parse(self, text: str) -> list[Token] | None:
        """Return the tokens; None where blocks lie too deep within others to be drawn."""
        env: dict[str, Any] = {}  # Any: what the parser keeps there is of any shape.
        tokens = self._markdown.parse(text, env)
        if _is_too_deep(tokens):
            return None
        return self._without_definitions.parse(text) if _has_unused_definition(tokens, env) else tokens


def render_table(table: SyntaxTreeNode) -> str:
    rows = [[_words(cell) for cell in row.children] for part in table.children for row in part.children]
    return draw_table(rows)


def _words(node: SyntaxTreeNode) -> str:
    """Return the words of a cell, with the targets of its links, which cannot be links in a drawing."""
    match node.type:
        case "text" | "code_inline":
            return node.content
        case "softbreak" | "hardbreak":
            return " "
        case "image":
            return _labelled(node.content, str(node.attrs.get("src", "")))
    words = "".join(map(_words, node.children))
    return _labelled(words, str(node.attrs.get("href", ""))) if node.type == "link" else words


def _labelled(label: str, target: str) -> str:
    if not label:
        return target
    return label if target in {label, f"mailto:{label}"} else f"{label} ({target})"


def _markdown(is_safe_link: Callable[[str], bool]) -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "xhtmlOut": False, "maxNesting": _MAX_DEPTH})
    parser.enable(["table", "strikethrough"])
    parser.validateLink = is_safe_link  # type: ignore[assignment,method-assign]  # The documented way.
    parser.core.ruler.push("ragged_tables", _leave_ragged_tables)
    return parser


def _leave_ragged_tables(state: StateCore) -> None:
    """Put code in place of each table that has rows with more cells than its head: they would be cut off."""
    starts = [at for at, token in enumerate(state.tokens) if token.type == "table_open" and token.map is not None]
    source = state.src.split("\n") if starts else []
    for start in reversed(starts):
        table = state.tokens[start]
        first, last = table.map or [0, 0]
        lines = [line.rstrip().lstrip(_MARGIN) for line in source[first:last]]
        if max(map(_cells, lines)) > _cells(lines[1]):
            end = next(at for at in range(start, len(state.tokens)) if state.tokens[at].type == "table_close")
            code = Token("code_block", "code", 0, map=table.map, level=table.level, block=True)
            code.content = "\n".join([*lines, ""])
            state.tokens[start : end + 1] = [code]


def _cells(line: str) -> int:
    return len(_BORDER.split(line.strip("|")))


def _is_too_deep(tokens: Sequence[Token]) -> bool:
    return any(token.type in _CONTAINERS and token.level >= _MAX_DEPTH - 1 for token in tokens)


def _has_unused_definition(tokens: Sequence[Token], env: dict[str, Any]) -> bool:
    """Tell whether a link is defined that nothing refers to, or twice; neither would be seen anywhere."""
    if env.get("duplicate_refs"):
        return True
    references = env.get("references", {})
    inline = [child for token in tokens for child in token.children or ()]
    used = {child.attrs.get("href") or child.attrs.get("src") for child in inline}
    return any(each["href"] not in used for each in references.values())


_SAFE_SCHEMES = ("http://", "https://", "mailto:")
_LINK_GUARDS = {"rel": "noopener noreferrer nofollow", "target": "_blank"}


def render_html(markdown: str) -> str:
    """Render CommonMark with tables and strikethrough. HTML in it is shown as text; an image becomes a link to it."""
    tokens = _parser.parse(markdown)
    if tokens is None:
        return f"<p>{escapeHtml(markdown)}</p>\n"
    return str(_renderer.render(tokens, _parser.options, {}))


class _Renderer(RendererHTML):
    def link_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        env["is_inside_link"] = True
        tokens[idx].attrs.update(_LINK_GUARDS)
        return self.renderToken(tokens, idx, options, env)

    def link_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        env["is_inside_link"] = False
        return self.renderToken(tokens, idx, options, env)

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """Show a link instead: loading an image would tell its server who reads, and when."""
        source = str(tokens[idx].attrs.get("src", ""))
        label = escapeHtml(self.renderInlineAsText(tokens[idx].children, options, env) or source)
        if env.get("is_inside_link"):
            return label
        link = Token("link_open", "a", 1, attrs={"href": source, **_LINK_GUARDS})
        return f"{self.renderToken([link], 0, options, env)}{label}</a>"

    def th_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return self._cell(tokens, idx, options, env)

    def td_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return self._cell(tokens, idx, options, env)

    def _cell(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """Align by attribute: a content security policy without inline styles ignores `style`."""
        style = str(tokens[idx].attrs.pop("style", ""))
        if style:
            tokens[idx].attrs["align"] = style.removeprefix("text-align:")
        return self.renderToken(tokens, idx, options, env)


def _is_safe_link(url: str) -> bool:
    return url.strip().lower().startswith(_SAFE_SCHEMES)


_parser = Parser(_is_safe_link)
_renderer = _Renderer()
