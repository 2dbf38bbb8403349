"""The line to Discord's gateway: keeps it open, takes it up where it broke, and notices when it has gone dead.

discord.py would do that by itself, but for ever, at any pace, and without telling anybody.
https://discord.com/developers/docs/events/gateway
"""

import asyncio
import json
import random
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

import discord
import structlog
import yarl
from aiohttp import ClientWebSocketResponse
from discord.gateway import DiscordWebSocket, ReconnectWebSocket
from discord.http import HTTPClient, Route

from channels.discord.errors import RAISED, translate
from config import Secret
from gateway.contract import Pulse
from gateway.errors import AuthRejected, ChannelError, Transient

log = structlog.get_logger()

Frame = dict[str, Any]  # What Discord sends is of any shape.
CLOSED_WITHIN = 2.0
MAX_RATE_LIMIT_WAIT = 30.0
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
        super().__init__(loop=discord.utils.MISSING, max_ratelimit_timeout=MAX_RATE_LIMIT_WAIT)
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


AT_MOST = 20
WINDOW = 3600.0


class Identifies:
    """Counts logins over all of a channel's runs. A connection that is resumed is no login."""

    def __init__(self, times: deque[float], clock: Callable[[], float] = monotonic) -> None:
        self._times = times
        self._clock = clock

    @property
    def are_new(self) -> bool:
        """Whether there has been none yet."""
        return not self._times

    def pause(self) -> float:
        """Return the seconds until the next is allowed."""
        if len(self._times) < AT_MOST:
            return 0.0
        return max(0.0, self._times[-AT_MOST] + WINDOW - self._clock())

    def count(self) -> None:
        self._times.append(self._clock())
        while len(self._times) > AT_MOST:
            self._times.popleft()


HELLO_WITHIN = 20.0
READY_WITHIN = 30.0
SLACK = 1.75
"""How many heartbeats' time may pass without an answer. Discord asks for one in 41 s, so a dead line costs 72 s."""
RESUMES = 3
"""How often in a row a session is taken up in vain before a new one is begun."""
LONGEST_PAUSE = 60.0
RARELY = 30.0
"""Seconds between two wishes to connect anew. Discord has one in hours."""

_chance = random.Random()  # noqa: S311 - nothing here is a secret


@dataclass(frozen=True, slots=True, kw_only=True)
class _Thread:
    """What it takes to resume a session."""

    session: str
    sequence: int | None
    gateway: yarl.URL


class Line:
    """`on_event` is called with each event in its order, and must not wait."""

    def __init__(
        self,
        client: Client,
        token: Secret,
        identifies: Identifies,
        pulse: Pulse,
        on_event: Callable[[str, Frame], None],
        *,
        hello_within: float = HELLO_WITHIN,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._token = token
        self._identifies = identifies
        self._pulse = pulse
        self._on_event = on_event
        self._hello_within = hello_within
        self._sleep = sleep
        self._thread: _Thread | None = None
        self._failures = 0
        self._resumes = 0
        """Both since the last time that the line was up."""
        self._interval = 0.0
        self._is_up = False
        self._renewed_at: float | None = None
        self._deadline: asyncio.Timeout | None = None

    async def run(self) -> None:
        """Hold the line until cancelled, or until Discord refuses the bot; any other trouble ends in another try."""
        while True:
            trouble, is_routine = await self._until_broken()
            if isinstance(trouble, AuthRejected):
                raise trouble
            await self._recover(trouble, is_routine=is_routine)

    async def _until_broken(self) -> tuple[ChannelError, bool]:
        """Return why the line broke, and whether that is part of a long connection's life."""
        try:
            await self._connect()
        except ReconnectWebSocket as asked:
            return translate(asked, self._token), self._is_up
        except RAISED as error:
            return translate(error, self._token), False
        return Transient("The connection to Discord ended."), False

    def hear(self, text: str) -> None:
        """Take what came over the line: signs of life for ourselves, events for whoever reads them."""
        frame: Frame = json.loads(text)
        match frame.get("op"):
            case DiscordWebSocket.HELLO:
                self._interval = frame["d"]["heartbeat_interval"] / 1000
            case DiscordWebSocket.HEARTBEAT_ACK:
                self._prolong()
            case DiscordWebSocket.DISPATCH:
                self._note(str(frame["t"]), frame)
                self._on_event(str(frame["t"]), frame["d"])

    async def _connect(self) -> None:
        """Connect and stay so until something breaks, which is raised."""
        self._is_up = False
        thread = self._thread
        gateway = thread.gateway if thread else await self._new_gateway()
        socket: DiscordWebSocket | None = None
        try:
            async with asyncio.timeout(self._hello_within):
                socket = await self._open(gateway, thread)
            self._resumes += thread is not None
            async with asyncio.timeout(READY_WITHIN) as self._deadline:
                while True:
                    await socket.poll_event()
        finally:
            self._deadline = None
            if socket is not None:
                self._remember(socket)
            await self._client.hang_up(socket)

    async def _open(self, gateway: yarl.URL, thread: _Thread | None) -> DiscordWebSocket:
        return await DiscordWebSocket.from_client(
            self._client,
            initial=thread is None,
            gateway=gateway,
            session=thread.session if thread else None,
            sequence=thread.sequence if thread else None,
            resume=thread is not None,
        )

    async def _new_gateway(self) -> yarl.URL:
        """Ask for the way to a new session, when one may be begun."""
        if not self._identifies.are_new:
            await self._sleep(_chance.uniform(1.0, 5.0))  # So Discord wants it, lest all bots come back at once.
        _, url, limit = await self._client.http.get_bot_gateway()
        pause = self._identifies.pause()
        if limit["remaining"] <= 0:
            pause = max(pause, limit["reset_after"] / 1000)
        if pause:
            self._pulse.down(f"It has logged in too often; the next time is in {pause:.0f} s.")
            await self._sleep(pause)
        self._identifies.count()
        return yarl.URL(url)

    async def _recover(self, trouble: ChannelError, *, is_routine: bool) -> None:
        """Wait as long as it takes; what is routine, and rare, is tried again at once, and told to nobody."""
        if self._resumes >= RESUMES:
            self._thread = None
        if is_routine and self._is_rare():
            return
        self._pulse.down(str(trouble))
        asked = trouble.retry_after if isinstance(trouble, Transient) else None
        await self._sleep(asked if asked is not None else _pause(self._failures))
        self._failures += 1

    def _is_rare(self) -> bool:
        """Whether the last time that it was routine is long ago: a gateway that asks again and again is in trouble."""
        now = asyncio.get_running_loop().time()
        before, self._renewed_at = self._renewed_at, now
        return before is None or now - before >= RARELY

    def _note(self, event: str, frame: Frame) -> None:
        if event in {"READY", "RESUMED"}:
            self._is_up = True
            self._failures = self._resumes = 0
            self._prolong()
            self._pulse.up()
        if event == "READY" and not frame["d"].get("guilds"):
            log.info("bot_is_nowhere", hint="Invite it to a server, or write to it directly.")

    def _prolong(self) -> None:
        if self._is_up and self._deadline is not None and self._deadline.when() is not None:
            self._deadline.reschedule(asyncio.get_running_loop().time() + self._interval * SLACK)

    def _remember(self, socket: DiscordWebSocket) -> None:
        """Keep what is needed to go on where the line broke."""
        if socket.session_id is None:
            self._thread = None
        else:
            self._thread = _Thread(session=socket.session_id, sequence=socket.sequence, gateway=socket.gateway)


def _pause(failures: int) -> float:
    """Return a pause that doubles with each failure, shortened by up to half lest many bots return at once."""
    return min(2.0 ** min(failures, 10), LONGEST_PAUSE) * _chance.uniform(0.5, 1.0)
