"""Draws sampled stacks as a flame graph: an SVG file whose boxes show their figures when the pointer is over them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import cycle

Stacks = dict[tuple[str, ...], float]
"""The cost of each stack. Its outermost frame is the first."""

WIDTH, ROW, TOP, MARGIN = 1400.0, 17, 80, 10
MIN_WIDTH = 0.4
"""Narrower boxes are left out."""
LETTER = 6.1
MIXED = "#e3e3e3"
"""The colour of a box whose cost is divided between groups."""
MOST = 0.6
COLOURS = (
    *("#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f", "#edc948", "#b07aa1", "#ff9da7"),
    *("#9c755f", "#1b9e77", "#d4a6c8", "#bab0ac", "#a0cbe8", "#ffbe7d", "#d7b5a6"),
)


@dataclass(slots=True)
class _Frame:
    cost: float = 0.0
    groups: dict[str, float] = field(default_factory=dict)
    children: dict[str, "_Frame"] = field(default_factory=dict)


def draw(
    stacks: Stacks, *, title: str, unit: str, group: Callable[[tuple[str, ...]], str], groups: Sequence[str]
) -> str:
    """Return the SVG. A box has the colour of the group that most of its cost belongs to."""
    root = _Frame()
    for stack, cost in stacks.items():
        frame, name = root, group(stack)
        for each in ("", *stack):
            frame = frame.children.setdefault(each, _Frame()) if each else root
            frame.cost += cost
            frame.groups[name] = frame.groups.get(name, 0.0) + cost
    colours = dict(zip(groups, cycle(COLOURS), strict=False))
    boxes: list[str] = []
    lines = _depth(root)
    height = TOP + (lines + 1) * ROW + MARGIN

    def add(name: str, frame: _Frame, left: float, line: int) -> None:
        width = frame.cost / root.cost * (WIDTH - 2 * MARGIN)
        if width < MIN_WIDTH:
            return
        top = height - MARGIN - (line + 1) * ROW
        main = max(frame.groups, key=frame.groups.__getitem__)
        colour = colours[main] if frame.groups[main] >= MOST * frame.cost else MIXED
        letters = int(width / LETTER) - 1
        shown = name if len(name) <= letters else f"{name[: letters - 1]}…" if letters > 3 else ""  # noqa: PLR2004
        hint = f"{name}: {frame.cost:,.0f} {unit}, {frame.cost / root.cost:.1%}"
        boxes.append(
            f'<g><title>{escape(hint)}</title><rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{ROW - 1}" '
            f'fill="{colour}" stroke="white" stroke-width="0.3"/>'
            + (f'<text x="{left + 3:.1f}" y="{top + 12}">{escape(shown)}</text>' if shown else "")
            + "</g>"
        )
        for each, child in sorted(frame.children.items()):
            add(each, child, left, line + 1)
            left += child.cost / root.cost * (WIDTH - 2 * MARGIN)

    add(title, root, float(MARGIN), 0)
    legend, left, top = [], float(MARGIN), 34
    for name, colour in colours.items():
        if left + 22 + LETTER * len(name) > WIDTH:
            left, top = float(MARGIN), top + 16
        legend.append(
            f'<rect x="{left:.1f}" y="{top}" width="10" height="10" fill="{colour}"/>'
            f'<text x="{left + 14:.1f}" y="{top + 9}">{escape(name)}</text>'
        )
        left += 22 + LETTER * len(name)
    size = f'width="{WIDTH:.0f}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {height}" {size}'
    text = f'<text x="{MARGIN}" y="20" font-size="14">{escape(title)}</text>'
    start = [f'{head} font-family="monospace" font-size="10">', f'<rect {size} fill="white"/>', text]
    return "\n".join([*start, *legend, *boxes, "</svg>\n"])


def _depth(frame: _Frame) -> int:
    return 1 + max(map(_depth, frame.children.values()), default=0)
