"""The reference of the HTTP API, from its OpenAPI document."""

import json
from collections.abc import Iterator

from website.json_schema import Schema, cell, code, type_of

_METHODS = ("get", "post", "put", "patch", "delete")
INTRODUCTION = """\
# HTTP API

All operations of the API and their types. [The API](../docs/api.md) explains how to use it. A running gateway serves
the same at `/api/docs`, and the [OpenAPI document](openapi.json) at `/api/openapi.json`.

Every operation may also answer with 400, 401, 403, 429, 500, 502, 503 or 504 and a [Problem](#problem).
"""
_COMMON = {"400", "401", "403", "408", "413", "415", "429", "500", "502", "503", "504"}


def api_page(document: bytes) -> str:
    described = json.loads(document)
    types = described["components"]["schemas"]
    lines = [INTRODUCTION]
    for tag in described["tags"]:
        lines.append(f"## {tag['name']}\n")
        for path, methods in described["paths"].items():
            for method in _METHODS:
                operation = methods.get(method)
                if operation and tag["name"] in operation["tags"]:
                    lines += _operation(f"{method.upper()} {path}", operation, types)
    lines.append("## Types\n")
    for name, schema in types.items():
        lines += _type(name, schema, types)
    return "\n".join(lines)


def _operation(title: str, operation: Schema, types: dict[str, Schema]) -> Iterator[str]:
    yield f"### `{title}`\n"
    yield f"{operation['summary']}. {operation.get('description', '')}".strip() + "\n"
    if parameters := operation["parameters"]:
        yield "| parameter | in | values | meaning |\n|---|---|---|---|"
        for each in parameters:
            needed = ", required" if each.get("required") else ""
            values = cell(type_of(each["schema"], types))
            yield f"| `{each['name']}` | {each['in']}{needed} | {values} | {cell(each.get('description', ''))} |"
        yield ""
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        yield f"- Request: `{media_type}`{_of(content['schema'], types)}"
    for status, response in operation["responses"].items():
        if status in _COMMON:
            continue
        meaning = "" if response["description"] == operation["summary"] else f" {response['description']}"
        contents = response.get("content", {})
        kinds = " or ".join(f"`{media_type}`{_of(each['schema'], types)}" for media_type, each in contents.items())
        yield f"- {status}:{meaning}{f' {kinds}' if kinds else ''}"
    yield ""


def _of(schema: Schema, types: dict[str, Schema]) -> str:
    described = type_of(schema, types, links=True)
    return f", {described}" if described.startswith("[") else ""


def _type(name: str, schema: Schema, types: dict[str, Schema]) -> Iterator[str]:
    yield f"### {name}\n"
    if description := schema.get("description"):
        yield f"{description}\n"
    if "properties" not in schema:
        yield f"{type_of(schema, types, links=True)}\n"
        return
    yield "| field | values | default | meaning |\n|---|---|---|---|"
    for field, value in schema["properties"].items():
        default = "required" if field in schema.get("required", ()) else ""
        if value.get("default") is not None:
            default = code(value["default"])
        meaning = cell(value.get("description", ""))
        yield f"| `{field}` | {cell(type_of(value, types, links=True))} | {default} | {meaning} |"
    yield ""
