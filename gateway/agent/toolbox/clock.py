"""What time it is."""

from gateway.agent.tools import ToolContext, tool

__all__ = ["current_time"]


@tool(concurrent=True)
async def current_time(context: ToolContext) -> str:
    """Tell the current date and time."""
    return f"{context.now():%A, %d %B %Y, %H:%M:%S %Z}".rstrip()
