"""Sending a file of the workspace to the chat."""

import asyncio
import os
import stat
from pathlib import PurePath

from gateway.agent.toolbox.inside import opened
from gateway.agent.tools import ToolContext, ToolFailed, tool
from gateway.errors import Refused

__all__ = ["send_file"]


@tool
async def send_file(context: ToolContext, path: str) -> str:
    """Send a file of the workspace to the person, along with your answer."""
    descriptor = await asyncio.to_thread(_open, context, path)
    try:
        await context.send_file(descriptor, PurePath(path).name)
    except Refused as reason:
        raise ToolFailed(f"{path!r} was not sent: {reason}.") from reason
    except OSError as trouble:
        raise ToolFailed(f"{path!r} was not sent: {trouble.strerror or 'the disk refused'}.") from trouble
    finally:
        os.close(descriptor)
    return f"{PurePath(path).name} goes to the person with your answer."


def _open(context: ToolContext, path: str) -> int:
    with opened(context.workspace, path) as file:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise ToolFailed(f"{path!r} is not a file.")
        return os.dup(file)
