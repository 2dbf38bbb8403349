"""Describes a JSON Schema in a few words, for tables of fields."""

import json
from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]  # JSON Schema.

_NAMES = {"boolean": "true or false", "string": "text", "null": "none", "object": "table"}


def type_of(schema: Schema, definitions: Mapping[str, Schema], *, links: bool = False) -> str:
    """Return the values that a schema allows, such as `list of text`. With `links`, it links to the types it names."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        target = definitions[name]
        if "enum" in target:
            return type_of(target, definitions)
        return f"[{name}](#{name.lower()})" if links else "table"
    if "const" in schema:
        return code(schema["const"])
    if "enum" in schema:
        return " or ".join(code(each) for each in schema["enum"])
    if any_of := schema.get("anyOf"):
        several = dict.fromkeys(type_of(each, definitions, links=links) for each in any_of)
        return " or ".join(each for each in several if each != "none") if len(several) > 1 else next(iter(several))
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {type_of(schema['items'], definitions, links=links)}" if "items" in schema else "list"
    kinds = kind if isinstance(kind, list) else [kind]
    described = " or ".join(_NAMES.get(each, str(each)) for each in kinds)
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{described}, {low:,} to {high:,}"
    return f"{described}, at least {low:,}" if low is not None else described


def code(value: object) -> str:
    """Return a value as code for a cell of a table."""
    return f"`{json.dumps(value, ensure_ascii=False)}`".replace("|", "\\|")


def cell(text: str) -> str:
    """Return text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
