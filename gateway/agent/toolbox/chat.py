"""Tools for the conversation: the time, plans, reminders, schedules and files."""

import asyncio
import os
from pathlib import PurePath
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.agent.toolbox.workspace import open_inside
from gateway.agent.tools import ToolContext, ToolFailed, tool
from gateway.errors import Refused


@tool(concurrent=True)
async def current_time(context: ToolContext) -> str:
    """Get date and time."""
    return f"{context.now():%A, %d %B %Y, %H:%M:%S %Z}".rstrip()


class _PlanItem(msgspec.Struct, frozen=True, kw_only=True):
    content: Annotated[str, msgspec.Meta(max_length=500)]
    status: Literal["pending", "in_progress", "completed"] = "pending"


@tool(concurrent=True)
async def plan(_context: ToolContext, steps: Annotated[list[_PlanItem], msgspec.Meta(max_length=50)]) -> str:
    """Show the person the steps of a longer task and their progress. Give all steps each time."""
    return f"Noted, {sum(step.status == 'completed' for step in steps)} of {len(steps)} completed."


# A page that talks a model into a reminder gains a line of text. A prompt that runs every day needs a person's consent.
@tool(asks_if="act")
async def remind(
    context: ToolContext,
    text: str,
    when: Annotated[str, Meta(description="ISO 8601 time or duration (PT20M), or cron line.")],
    *,
    act: bool = False,
) -> str:
    """Send a text to this chat later, or act on it then."""
    try:
        return await (context.schedule if act else context.remind)(text, when)
    except Refused as reason:
        what = "schedule" if act else "reminder"
        raise ToolFailed(f"No {what} was set: {str(reason).rstrip('.')}.") from reason


@tool
async def send_file(context: ToolContext, path: str) -> str:
    """Send a file with your answer."""

    def open_file() -> int:
        with open_inside(context, path) as file:
            return os.dup(file)

    descriptor = await asyncio.to_thread(open_file)
    try:
        await send_open_file(context, descriptor, PurePath(path).name)
    finally:
        os.close(descriptor)
    return f"{PurePath(path).name} goes to the person with your answer."


async def send_open_file(context: ToolContext, descriptor: int, name: str) -> str:
    """Send an open file along with the answer. Returns the name that it has there. Raises `ToolFailed`."""
    try:
        return await context.send_file(descriptor, name)
    except Refused as reason:
        raise ToolFailed(f"{name!r} was not sent: {reason}.") from reason
    except OSError as error:
        raise ToolFailed(f"{name!r} was not sent: {error.strerror or 'the disk refused'}.") from error
