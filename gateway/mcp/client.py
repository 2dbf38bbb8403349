"""Opening a client of the SDK by what the settings say. Only this module imports the SDK, which takes a second."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, TextIO

import httpx2
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from config import McpSettings

__all__ = ["open_client"]


def open_client(settings: McpSettings, errors: TextIO) -> Client:
    """Return a client that connects when it is entered; what a program writes to stderr goes to `errors`."""
    transport = _program(settings, errors) if settings.command else _url(settings)
    return Client(transport, read_timeout_seconds=settings.timeout)


@asynccontextmanager
async def _program(settings: McpSettings, errors: TextIO) -> AsyncGenerator[Any]:  # Any: the SDK does not export it.
    command, *arguments = settings.command
    environment = {name: secret.reveal() for name, secret in settings.env.items()}
    parameters = StdioServerParameters(command=command, args=arguments, env=environment)
    async with stdio_client(parameters, errlog=errors) as streams:
        yield streams


@asynccontextmanager
async def _url(settings: McpSettings) -> AsyncGenerator[Any]:  # As above.
    headers = {name: secret.reveal() for name, secret in settings.headers.items()}
    patience = httpx2.Timeout(settings.timeout)
    # What the environment says about proxies is not for us: the headers may hold a key.
    client = httpx2.AsyncClient(headers=headers, timeout=patience, trust_env=False)
    async with client, streamable_http_client(str(settings.url), http_client=client) as streams:
        yield streams
