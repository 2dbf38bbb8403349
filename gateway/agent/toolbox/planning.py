"""The plan of a longer task, for the person to follow."""

from typing import Annotated, Literal

import msgspec

from gateway.agent.tools import ToolContext, tool

__all__ = ["Step", "plan"]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    content: Annotated[str, msgspec.Meta(max_length=500)]
    status: Literal["pending", "in_progress", "completed"] = "pending"


@tool(concurrent=True)
async def plan(_context: ToolContext, steps: Annotated[list[Step], msgspec.Meta(max_length=50)]) -> str:
    """Tell the person the steps of a longer task and how far each is. Give all of them each time."""
    return f"Noted, {sum(step.status == 'completed' for step in steps)} of {len(steps)} completed."
