"""discord.py's client, with two changes: it can speak to another server, and it hands over events as they come.

The events are handed over raw and in order, in the one call in which they arrive: discord.py would start a task for
each, whose order nobody knows.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import discord
from aiohttp import ClientWebSocketResponse
from discord.gateway import DiscordWebSocket
from discord.http import HTTPClient, Route

__all__ = ["Client", "Frame"]

Frame = dict[str, Any]  # What Discord sends is of any shape.
CLOSED_WITHIN = 2.0
LONGEST_PAUSE = 30.0
"""For which discord.py itself waits when Discord asks for a pause. It can be no less; what is longer is raised."""


class Client(discord.Client):
    """`hear` is called with every text that comes over the gateway, before discord.py reads it."""

    def __init__(self, base: str | None, hear: Callable[[str], None]) -> None:
        # Nobody misses voice here, so there is nothing to warn of.
        discord.VoiceClient.warn_nacl = discord.VoiceClient.warn_dave = False
        super().__init__(
            intents=_intents(),
            allowed_mentions=discord.AllowedMentions.none(),
            max_messages=None,
            enable_debug_events=True,
        )
        self._hear = hear
        self.http: _Http = _Http(base)
        # The state keeps what it was given when the client was made, with no other way to give it something else.
        self._connection.http = self.http
        # Nor a way to have it read nothing: it would keep whole servers in memory, and break on what it cannot read.
        self._connection.parsers = {}

    def dispatch(self, event: str, /, *args: Any, **_kwargs: Any) -> None:  # noqa: ANN401 - as the base class has it.
        if event == "socket_raw_receive":
            self._hear(args[0])

    async def hang_up(self, socket: DiscordWebSocket | None) -> None:
        """Close the line without ending the session; a dead peer does not say goodbye, and is not waited for.

        Before there is a `socket` of discord.py's, there may be a connection all the same, of which it does not know.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSED_WITHIN):
                if socket is not None:
                    await socket.close(4000)
                elif self.http.socket is not None:
                    await self.http.socket.close(code=4000)

    def do_without_content(self) -> None:
        """Ask for no more than what an application without the Message Content intent may have."""
        self._connection._intents.message_content = False  # noqa: SLF001 - `intents` gives a copy away.


class _Http(HTTPClient):
    """discord.py has one base address for all clients of a process; ours may differ by account."""

    def __init__(self, base: str | None) -> None:
        super().__init__(loop=discord.utils.MISSING, max_ratelimit_timeout=LONGEST_PAUSE)
        self._base = base.rstrip("/") if base else Route.BASE
        self.socket: ClientWebSocketResponse | None = None
        """The newest; discord.py forgets one that says nothing."""

    async def ws_connect(self, url: str, *, compress: int = 0) -> ClientWebSocketResponse:
        self.socket = None
        self.socket = await super().ws_connect(url, compress=compress)
        return self.socket

    async def request(self, route: Route, **options: Any) -> Any:  # noqa: ANN401 - as the base class has it.
        route.url = self._base + route.url.removeprefix(Route.BASE)
        return await super().request(route, **options)


def _intents() -> discord.Intents:
    intents = discord.Intents.none()
    intents.guilds = True
    intents.guild_messages = True
    intents.dm_messages = True
    intents.message_content = True
    return intents
