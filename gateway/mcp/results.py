"""What an MCP tool gives back, as text for the model."""

from typing import Any

import msgspec

from gateway.agent.tools import ToolFailed

__all__ = ["as_text"]


def as_text(result: Any) -> str:  # noqa: ANN401 - a type of the SDK, which this module does not load
    """Put the parts of a `CallToolResult` together; raise `ToolFailed` where it says that it is an error."""
    parts = [_part(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [msgspec.json.encode(result.structured_content).decode()]
    text = "\n\n".join(parts) or "(nothing)"
    if result.is_error:
        raise ToolFailed(text)
    return text


def _part(block: Any) -> str:  # noqa: ANN401 - as above
    match block.type:
        case "text":
            return str(block.text)
        case "resource" if hasattr(block.resource, "text"):
            return str(block.resource.text)
        case "resource_link":
            return f"[{block.name}: {block.uri}]"
        case kind:
            mime = getattr(block, "mime_type", None) or getattr(getattr(block, "resource", None), "mime_type", None)
            return f"[{kind} of type {mime or 'unknown'}, which cannot be shown here]"
