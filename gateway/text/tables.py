"""Tables for platforms that have none: drawn in columns, for a font in which all characters are equally wide."""

from collections.abc import Sequence

__all__ = ["draw_table"]


def draw_table(rows: Sequence[Sequence[str]]) -> str:
    """Draw rows of equally many cells, of which the first is the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    head, *body = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([head, "  ".join("─" * width for width in widths), *body])
