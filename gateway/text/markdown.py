"""Parses Markdown without losing any of it, and renders HTML that is safe to put into a page."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml, unescapeAll
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode
from markdown_it.utils import EnvType, OptionsDict

from gateway.text.highlight import highlight
from gateway.text.maths import enable_maths, render_formula
from gateway.text.plain import draw_table

_MAX_DEPTH = 20
"""Nested blocks. markdown-it silently drops deeper ones."""
_CONTAINERS = {"blockquote_open", "list_item_open"}
_CELL_BORDER = re.compile(r"(?<!\\)\|")
_MARGIN = " \t>"


class Parser:
    """Parses CommonMark with tables and strikethrough. HTML is plain text. One parser can serve all threads."""

    def __init__(self, is_safe_link: Callable[[str], bool], *extensions: Callable[[MarkdownIt], None]) -> None:
        self._markdown = _new_parser(is_safe_link)
        self._without_definitions = _new_parser(is_safe_link).disable("reference")
        for enable in extensions:
            enable(self._markdown)
            enable(self._without_definitions)

    @property
    def options(self) -> OptionsDict:
        return self._markdown.options

    def parse(self, text: str) -> list[Token] | None:
        """Return the tokens, or None if blocks are nested too deeply."""
        env: dict[str, Any] = {}  # Any: the parser stores values of any type here.
        tokens = self._markdown.parse(text, env)
        if any(token.type in _CONTAINERS and token.level >= _MAX_DEPTH - 1 for token in tokens):
            return None
        # A link definition that is not used, or defined twice, would be dropped. Then definitions are shown as text.
        inline = [child for token in tokens for child in token.children or ()]
        used = {child.attrs.get("href") or child.attrs.get("src") for child in inline}
        has_unused = any(each["href"] not in used for each in env.get("references", {}).values())
        return self._without_definitions.parse(text) if has_unused or env.get("duplicate_refs") else tokens


def _new_parser(is_safe_link: Callable[[str], bool]) -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "xhtmlOut": False, "maxNesting": _MAX_DEPTH})
    parser.enable(["table", "strikethrough"])
    parser.validateLink = is_safe_link  # type: ignore[assignment,method-assign]  # The documented way.
    parser.core.ruler.push("ragged_tables", _replace_ragged_tables)
    return parser


def _replace_ragged_tables(state: StateCore) -> None:
    """Turn a table into code if a row has more cells than the head: markdown-it would drop those cells."""

    def cells(line: str) -> int:
        return len(_CELL_BORDER.split(line.strip("|")))

    starts = [at for at, token in enumerate(state.tokens) if token.type == "table_open" and token.map is not None]
    source = state.src.split("\n") if starts else []
    for start in reversed(starts):
        table = state.tokens[start]
        first, last = table.map or [0, 0]
        lines = [line.rstrip().lstrip(_MARGIN) for line in source[first:last]]
        if max(map(cells, lines)) > cells(lines[1]):
            end = next(at for at in range(start, len(state.tokens)) if state.tokens[at].type == "table_close")
            code = Token("code_block", "code", 0, map=table.map, level=table.level, block=True)
            code.content = "\n".join([*lines, ""])
            state.tokens[start : end + 1] = [code]


def render_table(table: SyntaxTreeNode) -> str:
    """Draw a table as plain text in columns."""
    return draw_table(
        [[_plain_text(cell) for cell in row.children] for part in table.children for row in part.children]
    )


def _plain_text(node: SyntaxTreeNode) -> str:
    """Return the text of a cell. Links are followed by their target, since plain text has no links."""
    match node.type:
        case "text" | "code_inline":
            return node.content
        case "softbreak" | "hardbreak":
            return " "
        case "image":
            label, target = node.content, str(node.attrs.get("src", ""))
        case kind:
            label = "".join(map(_plain_text, node.children))
            if kind != "link":
                return label
            target = str(node.attrs.get("href", ""))
    if not label:
        return target
    return label if target in {label, f"mailto:{label}"} else f"{label} ({target})"


_SAFE_SCHEMES = ("http://", "https://", "mailto:")
_LINK_GUARDS = {"rel": "noopener noreferrer nofollow", "target": "_blank"}


def render_html(markdown: str) -> str:
    """Render CommonMark with tables, strikethrough, task lists, formulas and coloured code.

    HTML is shown as text, and an image becomes a link to it.
    """
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
        """Show a link instead. Loading an image would tell its server who reads the message, and when."""
        source = str(tokens[idx].attrs.get("src", ""))
        label = escapeHtml(self.renderInlineAsText(tokens[idx].children, options, env) or source)
        if env.get("is_inside_link"):
            return label
        link = Token("link_open", "a", 1, attrs={"href": source, **_LINK_GUARDS})
        return f"{self.renderToken([link], 0, options, env)}{label}</a>"

    def math(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        del options, env
        token = tokens[idx]
        html = render_formula(token.content, token.markup)
        return f"<p>{html}</p>\n" if token.block else html

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        del options, env
        token = tokens[idx]
        language = unescapeAll(token.info).strip().partition(" ")[0]
        # Code that is still being written has no last line yet. It would be coloured again with each word.
        first, last = token.map or (0, 0)
        is_complete = last - first == token.content.count("\n") + 2
        code = highlight(token.content, language) if is_complete else escapeHtml(token.content)
        name = f' class="language-{escapeHtml(language)}"' if language else ""
        return f"<pre><code{name}>{code}</code></pre>\n"

    def th_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return self._cell(tokens, idx, options, env)

    def td_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return self._cell(tokens, idx, options, env)

    def _cell(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """Align by attribute, because our content security policy forbids inline styles."""
        style = str(tokens[idx].attrs.pop("style", ""))
        if style:
            tokens[idx].attrs["align"] = style.removeprefix("text-align:")
        return self.renderToken(tokens, idx, options, env)


def _enable_task_lists(parser: MarkdownIt) -> None:
    parser.core.ruler.after("inline", "task_lists", _mark_tasks)


def _mark_tasks(state: StateCore) -> None:
    """Turn `[ ]` and `[x]` at the start of list items into signs."""
    for item, _, inline in zip(state.tokens, state.tokens[1:], state.tokens[2:], strict=False):
        first = inline.children[0] if item.type == "list_item_open" and inline.children else None
        sign = _TASKS.get(first.content[:4].lower()) if first is not None and first.type == "text" else None
        if first is not None and sign is not None:
            item.attrs["class"] = "task"
            first.content = f"{sign} {first.content[4:]}"


_TASKS = {"[ ] ": "☐", "[x] ": "☑"}
_parser = Parser(lambda url: url.strip().lower().startswith(_SAFE_SCHEMES), enable_maths, _enable_task_lists)
_renderer = _Renderer()
