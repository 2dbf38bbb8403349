"""The reference of the configuration: each table and key, from the model that validates the file."""

from collections.abc import Iterator

from config import schema
from config.inventory import CHANGEABLE
from config.reload import NEEDS_RESTART
from website.json_schema import Schema, cell, code, type_of

INTRODUCTION = """\
# Configuration

All tables and keys of `gatehouse.toml`. None of them is required. [The example file](../config/gatehouse.example.toml)
has all of them, with comments.

- *default*: the value of a key that is not in the file.
- *change*: `reload` if `gatehouse reload` applies a change, and `restart` if the gateway has to be started again.
  Keys marked `API` can also be changed in the console and by the API.
"""


def configuration_page() -> str:
    document = schema()
    lines = [INTRODUCTION]
    for name, table in document["properties"].items():
        lines += _tables(table, (name,), document["$defs"])
    return "\n".join(lines)


def _tables(table: Schema, path: tuple[str, ...], definitions: dict[str, Schema]) -> Iterator[str]:
    """Yield the section of a table, and then those of the tables in it."""
    is_list = table.get("type") == "array"
    target, suffix = _target(table)
    model = definitions[target["$ref"].rpartition("/")[2]]
    path = (*path, *suffix)
    name = ".".join("<name>" if part == "*" else part for part in path)
    # Angle brackets in a heading would be read as HTML.
    yield f"\n## `{'[[' if is_list else '['}{name}{']]' if is_list else ']'}`\n"
    yield f"{table.get('description') or model.get('description', '')}\n"
    yield "| key | values | default | change | meaning |\n|---|---|---|---|---|"
    inner = []
    for key, value in model["properties"].items():
        if _is_table(value, definitions):
            inner.append((key, value))
            continue
        pattern = ".".join((*path, key))
        change = "restart" if pattern in NEEDS_RESTART else "reload"
        if pattern in CHANGEABLE:
            change += ", API"
        default = code(value["default"]) if value.get("default") is not None else ""
        if key in model.get("required", ()):
            default = "required"
        meaning = cell(value.get("description", ""))
        yield f"| `{key}` | {cell(type_of(value, definitions))} | {default} | {change} | {meaning} |"
    for key, value in inner:
        yield from _tables(value, (*path, key), definitions)


def _target(table: Schema) -> tuple[Schema, tuple[str, ...]]:
    """Return the reference to the model of a table, and `*` if the table has entries by name."""
    by_name = [*table.get("patternProperties", {}).values(), table.get("additionalProperties")]
    if isinstance(by_name[0], dict):
        return by_name[0], ("*",)
    if table.get("type") == "array":
        return table["items"], ()
    for each in table.get("anyOf", ()):
        if "$ref" in each:
            return each, ()
    return table, ()


def _is_table(value: Schema, definitions: dict[str, Schema]) -> bool:
    reference = _target(value)[0].get("$ref", "")
    return "properties" in definitions.get(reference.rpartition("/")[2], {})
