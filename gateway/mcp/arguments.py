"""Checks the arguments of a call to an MCP server's tool, so that no person is asked about a call that cannot run."""

from typing import Any

from gateway.agent.tools import ToolFailed
from gateway.conversation import Json
from gateway.text import clean, excerpt

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def check_arguments(tool: str, schema: dict[str, Any], arguments: dict[str, Json]) -> None:
    """Raise `ToolFailed` if an argument is missing or has a wrong type. The server itself checks everything else.

    A full check would run regular expressions of the server on our event loop.
    """
    required, properties = schema.get("required"), schema.get("properties")
    missing = [str(name) for name in required if name not in arguments] if isinstance(required, list) else []
    if missing:
        raise ToolFailed(f"The arguments of {tool} are wrong: {_listed(missing)} missing.")
    known = properties if isinstance(properties, dict) else {}
    wrong = [name for name, value in arguments.items() if name in known and not _fits(value, known[name])]
    if wrong:
        raise ToolFailed(f"The arguments of {tool} are wrong: the type of {_listed(wrong)} wrong.")
    if schema.get("additionalProperties") is False and (unknown := [name for name in arguments if name not in known]):
        raise ToolFailed(f"The arguments of {tool} are wrong: {_listed(unknown)} unknown.")


def _fits(value: Json, schema: object) -> bool:
    wanted = schema.get("type") if isinstance(schema, dict) else None
    names = [wanted] if isinstance(wanted, str) else wanted if isinstance(wanted, list) else []
    if not names or not all(isinstance(name, str) and name in _TYPES for name in names):
        return True
    if isinstance(value, bool):  # Python counts it as an integer.
        return "boolean" in names
    if isinstance(value, float) and value.is_integer() and "integer" in names:
        return True
    return any(isinstance(value, _TYPES[name]) for name in names)


def _listed(names: list[str]) -> str:
    shown = ", ".join(f"`{excerpt(clean(name), 60)}`" for name in names[:5])
    return f"{shown} {'is' if len(names) == 1 else 'are'}"
