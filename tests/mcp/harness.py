"""Set-up shared by tests with real MCP servers."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from config import McpSettings
from gateway.agent.tools import Toolbox, ToolContext
from gateway.conversation import Json, ToolCall, ToolOutcome
from gateway.mcp.server import McpServers
from tests.polling import until

ROOT = Path(__file__).parents[2]
PROGRAM = str(Path(__file__).parent / "program.py")
TIMEOUT = 60


def program(**more: object) -> McpSettings:
    return McpSettings.model_validate({"command": (sys.executable, PROGRAM), **more})


@asynccontextmanager
async def running(**settings: McpSettings) -> AsyncIterator[McpServers]:
    async with asyncio.timeout(TIMEOUT), asyncio.TaskGroup() as tasks:
        servers = McpServers()
        servers.start(tasks, settings)
        yield servers
        await servers.stop()


async def up(servers: McpServers) -> Toolbox:
    await until(lambda: not any(server.trouble for server in servers))
    return Toolbox([], more=servers.tools)


async def call(toolbox: Toolbox, name: str, **arguments: Json) -> ToolOutcome:
    context = ToolContext(workspace=Path(), memory=Path(), now=lambda: datetime.now(UTC))
    return await toolbox.run(ToolCall(id="1", name=name, input=arguments), context)
