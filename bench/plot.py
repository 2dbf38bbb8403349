"""Draws lines over a logarithmic axis as an SVG file: panels side by side on a white background."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, log10

WIDTH, HEIGHT, GAP = 440, 360, 20
LEFT, RIGHT, TOP, BOTTOM = 56, 24, 112, 52
COLOURS = ("#0b62b0", "#c2410c", "#15803d", "#7e22ce")
STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
GRID = 6
"""Lines of the grid at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]


def draw(title: str, panels: Sequence[Panel]) -> str:
    width, height = len(panels) * (WIDTH + GAP) + GAP, HEIGHT + 2 * GAP
    size = f'width="{width}" height="{height}"'
    font = 'font-family="sans-serif" font-size="12" fill="#222"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {size} {font}>']
    parts.append(f'<rect {size} fill="white"/>')
    parts.append(f'<text x="{GAP}" y="28" font-size="16" font-weight="bold">{escape(title)}</text>')
    for number, panel in enumerate(panels):
        parts.append(f'<g transform="translate({GAP + number * (WIDTH + GAP)} {GAP})">{_panel(panel)}</g>')
    return "\n".join([*parts, "</svg>\n"])


def _panel(panel: Panel) -> str:
    sizes = sorted({x for line in panel.lines for x, _ in line.points})
    highest = max(y for line in panel.lines for _, y in line.points)
    step = next(step for step in STEPS if highest / step <= GRID)
    most = ceil(highest / step) * step
    low, high = log10(sizes[0]), log10(sizes[-1])

    def at(x: float, y: float) -> tuple[float, float]:
        across = (log10(x) - low) / (high - low)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y / most * (HEIGHT - TOP - BOTTOM)

    parts = [f'<text x="0" y="30" font-weight="bold">{escape(panel.title)}</text>']
    for number in range(round(most / step) + 1):
        _, y = at(sizes[0], number * step)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{number * step:g}</text>')
    for size in sizes:
        x, y = at(size, 0)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 5}" stroke="#222"/>')
        parts.append(f'<text x="{x:.1f}" y="{y + 19}" text-anchor="middle">{size:,.0f}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">{escape(panel.x_label)}</text>')
    across = (HEIGHT - BOTTOM + TOP) / 2
    label = f'<text transform="translate(14 {across}) rotate(-90)" text-anchor="middle">{escape(panel.y_label)}</text>'
    parts.append(label)
    for number, line in enumerate(panel.lines):
        colour, points = COLOURS[number], [at(x, y) for x, y in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        # The third line has its figures below it, where they hide none of the others.
        away = 18 if number > 1 else -8
        for (x, y), (size, value) in zip(points, line.points, strict=True):
            anchor = "start" if size == sizes[0] else "middle"  # The first one would cover the figures of the axis.
            hint = f"{line.name}, {size:,.0f}: {value:.2f}"
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"><title>{escape(hint)}</title></circle>'
                f'<text x="{x:.1f}" y="{y + away:.1f}" text-anchor="{anchor}" fill="{colour}">{value:.1f}</text>'
            )
        top = 46 + 16 * number
        parts.append(f'<rect x="{LEFT}" y="{top}" width="12" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + 18}" y="{top + 6}">{escape(line.name)}</text>')
    return "\n".join(parts)
