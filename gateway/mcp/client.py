"""Opens MCP SDK clients. Only this module imports the SDK, which takes a second."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, TextIO

import httpx2
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from config import McpSettings


def open_client(settings: McpSettings, errors: TextIO) -> Client:
    """Return a client that connects when it is entered. A program's stderr goes to `errors`."""

    @asynccontextmanager
    async def run_program() -> AsyncGenerator[Any]:  # Any: the SDK does not export the type.
        command, *arguments = settings.command
        environment = {name: secret.reveal() for name, secret in settings.env.items()}
        parameters = StdioServerParameters(command=command, args=arguments, env=environment)
        async with stdio_client(parameters, errlog=errors) as streams:
            yield streams

    @asynccontextmanager
    async def connect_to_url() -> AsyncGenerator[Any]:  # Any: as above.
        headers = {name: secret.reveal() for name, secret in settings.headers.items()}
        # Proxies from the environment are not used: the headers may contain a key.
        client = httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(settings.timeout), trust_env=False)
        async with client, streamable_http_client(str(settings.url), http_client=client) as streams:
            yield streams

    transport = run_program() if settings.command else connect_to_url()
    return Client(transport, read_timeout_seconds=settings.timeout)
