"""Tools and scripted agents for tests that run the whole gateway."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from gateway.agent.protocol import Chunk, TextDelta
from gateway.agent.tools import Tool, Toolbox, ToolContext, tool
from gateway.conversation import ToolCall
from gateway.daemon import Daemon
from tests.agent.scripted import ScriptedProvider


class HasToolbox(Protocol):
    def toolbox(self) -> Toolbox: ...


@dataclass
class Rocket:
    """A tool that needs approval, and remembers its calls."""

    launched: list[str] = field(default_factory=list)

    def toolbox(self) -> Toolbox:
        async def launch(_context: ToolContext, target: str) -> str:
            """Launch."""
            self.launched.append(target)
            return f"launched at {target}"

        async def look(_context: ToolContext) -> str:
            """Look."""
            return "seen"

        return Toolbox([tool(needs_approval=True)(launch), tool(look)])


def launch(target: str, number: int = 1) -> ToolCall:
    return ToolCall(id=f"call{number}", name="launch", input={"target": target})


def scripted(*steps: Sequence[Chunk | Exception]) -> ScriptedProvider:
    return ScriptedProvider(*steps, [TextDelta(text="Done.")])


@dataclass
class Gate:
    """A tool that runs until `leave` is set."""

    entered: asyncio.Event = field(default_factory=asyncio.Event)
    leave: asyncio.Event = field(default_factory=asyncio.Event)

    def tool(self) -> Tool:
        async def wait(_context: ToolContext) -> str:
            """Wait."""
            self.entered.set()
            await self.leave.wait()
            return "waited"

        return tool(wait)

    def toolbox(self) -> Toolbox:
        return Toolbox([self.tool()])


def call(number: int) -> ToolCall:
    return ToolCall(id=f"call{number}", name="wait", input={})


def agent(provider: ScriptedProvider, tools: HasToolbox) -> Callable[[Daemon], None]:
    """Return a function that gives the main agent of a daemon this model and these tools."""
    toolbox = tools.toolbox()
    return lambda daemon: daemon.agents.replace("main", lambda main: replace(main, provider=provider, toolbox=toolbox))
