"""The reference of metrics: their names, kinds, labels and meanings, from the code that renders them."""

import ast
from collections.abc import Iterator
from inspect import getsource

from gateway.observability import prometheus
from website.json_schema import cell

_KINDS = ("gauge", "counter", "histogram")
INTRODUCTION = """\
# Metrics

`/metrics` has these metrics in the text format of Prometheus. Alert rules and the set-up of Prometheus are in
[deploy/prometheus](../deploy/prometheus/README.md). Those of a cluster are there if `cluster.enabled` is set.

| metric | kind | labels | meaning |
|---|---|---|---|"""


def metrics_page() -> str:
    return "\n".join([INTRODUCTION, *_rows()]) + "\n"


def _rows() -> Iterator[str]:
    tree = ast.parse(getsource(prometheus))
    lists = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Tuple)
        if all(isinstance(each, ast.Constant) for each in node.value.elts)
    }
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    for call in sorted(calls, key=lambda call: call.lineno):
        assert isinstance(call.func, ast.Name)  # noqa: S101 - as above.
        if call.func.id not in _KINDS:
            continue
        name, meaning, _, *labels = call.args
        found: tuple[str, ...] = ()
        for each in labels:
            found = lists[each.id] if isinstance(each, ast.Name) else ast.literal_eval(each)
        described = ", ".join(f"`{label}`" for label in found)
        yield f"| `{ast.literal_eval(name)}` | {call.func.id} | {described} | {cell(ast.literal_eval(meaning))} |"
