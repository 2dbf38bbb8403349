"""Limits on what an MCP server may send: the size of a message, and the number and sizes of its tools."""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from config import McpSettings
from gateway.text import clean, excerpt

TOO_LARGE = "its answer is larger than `max_result_bytes`"
"""Part of the error that replaces a message that was too large to be read."""

_MAX_NAME = 60


class LeftOutTool(Struct, frozen=True, kw_only=True):
    """A tool that no agent gets, with the reason."""

    name: str
    reason: str


def select_tools(listed: Iterable[Any], settings: McpSettings) -> tuple[list[Any], tuple[LeftOutTool, ...]]:
    """Divide the tools of a server into those within the limits, and those left out. The first ones take precedence.

    The values are `Tool`s of the SDK, which this module does not import.
    """
    kept: list[Any] = []
    left_out: list[LeftOutTool] = []
    total = 0
    for each in listed:
        size = len(msgspec.json.encode(each.input_schema))
        if size > settings.max_schema_bytes:
            reason = f"its schema has {size:,} bytes, and max_schema_bytes is {settings.max_schema_bytes:,}"
        elif len(kept) >= settings.max_tools:
            reason = f"the server has more than max_tools, which is {settings.max_tools}"
        elif total + size > settings.max_schemas_bytes:
            reason = f"the schemas together are larger than max_schemas_bytes, which is {settings.max_schemas_bytes:,}"
        else:
            kept.append(each)
            total += size
            continue
        left_out.append(LeftOutTool(name=excerpt(clean(each.name), _MAX_NAME), reason=reason))
    return kept, tuple(left_out)
