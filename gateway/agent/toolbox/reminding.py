"""Reminding people of something later."""

from typing import Annotated

from msgspec import Meta

from gateway.agent.tools import ToolContext, ToolFailed, tool
from gateway.errors import Refused

__all__ = ["remind"]


@tool
async def remind(
    context: ToolContext,
    text: str,
    when: Annotated[str, Meta(description="ISO 8601 time or duration (PT20M), or a cron line to repeat it.")],
) -> str:
    """Send a text to this chat later."""
    try:
        return await context.remind(text, when)
    except Refused as reason:
        raise ToolFailed(f"No reminder was set: {reason}.") from reason
