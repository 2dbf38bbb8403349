"""Renders Markdown for a terminal. Imports rich, so only the interactive chat imports this module."""

from collections.abc import Callable, Sequence
from io import StringIO

from markdown_it.tree import SyntaxTreeNode
from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from gateway.text import printable
from gateway.text.markdown import Parser

MAX_WIDTH = 100
"""Longer lines are hard to read."""
MIN_WIDTH = 20
_CODE_INDENT = "    "
_COLUMN_GAP = "   "
_MIN_COLUMN = 12
"""A column of a table gets at least this width, or that of its longest word."""
_STYLES = {"em": "italic", "strong": "bold", "s": "strike", "code_inline": "cyan"}


class TerminalText:
    """Wraps text at words, and styles Markdown. Control characters of the text are removed, so it cannot add its own.

    Nothing of the text is lost: links and images show their target, and HTML is text.
    """

    def __init__(self, *, has_colour: bool) -> None:
        self._parser = Parser(lambda _url: True)  # A target is only shown, never opened.
        self._console = Console(
            file=StringIO(),
            force_terminal=True,
            # The terminal's own 16 colours, which fit its background.
            color_system="standard",
            no_color=not has_colour,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
        )

    def plain(self, text: str, width: int) -> list[str]:
        """Return the lines of a text that is not Markdown."""
        return self._lines(Text(printable(text).rstrip(), overflow="fold"), width)

    def dim(self, text: str, width: int) -> list[str]:
        return self._lines(Text(printable(text), style="dim", overflow="fold"), width)

    def markdown(self, text: str, width: int) -> list[str]:
        """Return the lines of a text in Markdown."""
        tokens = self._parser.parse(printable(text))
        if tokens is None:  # Nested too deeply.
            return self.plain(text, width)
        return self._blocks(SyntaxTreeNode(tokens).children, width)

    def complete_length(self, text: str) -> int:
        """Return the length of the part of `text` that further text cannot change: all blocks but the last one."""
        tokens = self._parser.parse(text) or []
        starts = [token.map[0] for token in tokens if token.level == 0 and token.nesting >= 0 and token.map]
        if len(starts) < 2:  # noqa: PLR2004 - with one block, none is complete.
            return 0
        return sum(len(line) + 1 for line in text.split("\n")[: starts[-1]])

    def _blocks(self, nodes: Sequence[SyntaxTreeNode], width: int, *, is_tight: bool = False) -> list[str]:
        lines: list[str] = []
        for node in nodes:
            if lines and not is_tight:
                lines.append("")
            lines += self._block(node, max(width, MIN_WIDTH))
        return lines

    def _block(self, node: SyntaxTreeNode, width: int) -> list[str]:
        match node.type:
            case "heading":
                style = "bold underline" if node.tag == "h1" else "bold"
                return self._lines(_inline(node, Text(style=style)), width)
            case "fence" | "code_block":
                code = Text(node.content.rstrip("\n"), style="cyan", overflow="fold", no_wrap=False)
                language = self.dim(node.info, width - len(_CODE_INDENT)) if node.info else []
                return [f"{_CODE_INDENT}{line}" for line in (*language, *self._lines(code, width - len(_CODE_INDENT)))]
            case "bullet_list":
                return self._list(node, lambda _: "• ", width)
            case "ordered_list":
                start = int(node.attrs.get("start", 1))
                return self._list(node, lambda place: f"{start + place}. ", width)
            case "blockquote":
                return [f"│ {line}" for line in self._blocks(node.children, width - 2)]
            case "hr":
                return ["─" * min(width, 40)]
            case "table":
                return self._table(node, width)
            case _:
                return self._lines(_inline(node, Text()), width)

    def _list(self, node: SyntaxTreeNode, marker: Callable[[int], str], width: int) -> list[str]:
        is_tight = all(block.hidden for item in node.children for block in item.children if block.type == "paragraph")
        indent = max(len(marker(place)) for place in range(len(node.children)))
        lines: list[str] = []
        for place, item in enumerate(node.children):
            if lines and not is_tight:
                lines.append("")
            first, *others = self._blocks(item.children, width - indent, is_tight=is_tight) or [""]
            lines.append(f"{marker(place):>{indent}}{first}")
            lines += [f"{' ' * indent}{line}" if line else "" for line in others]
        return lines

    def _table(self, node: SyntaxTreeNode, width: int) -> list[str]:
        head, *rows = [row.children for part in node.children for row in part.children]
        columns = zip(*([cell_len(_longest_word(cell)) for cell in row] for row in (head, *rows)), strict=True)
        needed = sum(min(max(column), _MIN_COLUMN) + len(_COLUMN_GAP) for column in columns) - len(_COLUMN_GAP)
        if needed > width:
            return self._records(head, rows, width)
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for cell in head:
            style = str(cell.attrs.get("style", ""))
            justify = "right" if "right" in style else "center" if "center" in style else "left"
            table.add_column(_inline(cell, Text(style="bold")), justify=justify, overflow="fold")  # type: ignore[arg-type]  # One of its literals.
        for row in rows:
            table.add_row(*(_inline(cell, Text()) for cell in row))
        return self._lines(table, width)

    def _records(
        self, head: Sequence[SyntaxTreeNode], rows: Sequence[Sequence[SyntaxTreeNode]], width: int
    ) -> list[str]:
        """Show each row as lines of a name and a value: rich leaves out columns for which there is no room."""
        lines: list[str] = []
        for row in rows or [head]:
            if lines:
                lines.append("")
            for name, cell in zip(head, row, strict=True):
                text = Text()
                if rows and (label := _inline(name, Text(style="bold"))).plain:
                    text.append_text(label).append(": ")
                lines += self._lines(_inline(cell, text), width)
        return lines

    def _lines(self, renderable: RenderableType, width: int) -> list[str]:
        self._console.width = max(width, MIN_WIDTH)
        with self._console.capture() as capture:
            self._console.print(renderable)
        return [line.rstrip() for line in capture.get().removesuffix("\n").split("\n")]


def _longest_word(node: SyntaxTreeNode) -> str:
    return max(_inline(node, Text()).plain.split(), key=cell_len, default="")


def _inline(node: SyntaxTreeNode, text: Text, style: str = "") -> Text:
    """Append the text of `node` to `text`, with its styles."""
    for child in node.children:
        inner = f"{style} {_STYLES.get(child.type, '')}".strip()
        match child.type:
            case "text" | "code_inline":
                text.append(child.content, inner)
            case "softbreak":
                text.append(" ")
            case "hardbreak":
                text.append("\n")
            case "link" | "image":
                target = str(child.attrs.get("href") or child.attrs.get("src") or "")
                label = _inline(child, Text(), inner)
                text.append_text(label)
                if not label.plain:
                    text.append(target, "underline")
                elif label.plain not in {target, target.removeprefix("mailto:")}:
                    text.append(" (").append(target, "underline").append(")")
            case _:
                _inline(child, text, inner)
    return text
