"""The reference of log events: their names, levels and fields, from all calls of a logger."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import config
import gateway

_LEVELS = ("debug", "info", "warning", "error", "exception", "critical")
_SHOWN_AS = {"exception": "error"}
_PACKAGES = ("config", "gateway", "channels")
INTRODUCTION = """\
# Log events

Each line of the log has an `event`, and fields with the details. All lines have `timestamp` and `level`, and those of
a message also `channel`, `chat` and `session` where they are known. [Log lines](../docs/behaviour.md#logs) says what
they never contain.

| event | level | fields | written by |
|---|---|---|---|"""


def log_events_page() -> str:
    levels: defaultdict[str, dict[str, None]] = defaultdict(dict)
    fields: defaultdict[str, dict[str, None]] = defaultdict(dict)
    modules: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for event, level, names, module in _calls():
        levels[event][level] = None
        fields[event].update(dict.fromkeys(names))
        modules[event][module] = None
    lines = [INTRODUCTION]
    for event in sorted(levels):
        named = ", ".join(f"`{name}`" for name in fields[event])
        written_by = ", ".join(f"`{module}`" for module in modules[event])
        lines.append(f"| `{event}` | {', '.join(levels[event])} | {named} | {written_by} |")
    return "\n".join(lines) + "\n"


def _calls() -> Iterator[tuple[str, str, list[str], str]]:
    """Yield the event, the level, the fields and the module of each call."""
    root = Path(gateway.__file__).parents[1]
    assert root == Path(config.__file__).parents[1]  # noqa: S101 - the packages are side by side.
    for module in sorted(path for package in _PACKAGES for path in (root / package).rglob("*.py")):
        for call in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            match call:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="log"), attr=level),
                    args=[ast.Constant(value=str(event)), *_],
                ) if level in _LEVELS:
                    names = [each.arg for each in call.keywords if each.arg not in (None, "exc_info")]
                    yield (
                        event,
                        _SHOWN_AS.get(level, level),
                        [name for name in names if name],
                        str(module.relative_to(root)),
                    )
