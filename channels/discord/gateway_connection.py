"""The WebSocket connection to Discord's gateway: connects, resumes after a break, and detects a dead connection.

discord.py has a loop for this, but it reconnects forever at any rate and reports nothing. So the loop is here, and
discord.py provides the socket (compression, heartbeats, resume) and the REST client.
https://discord.com/developers/docs/events/gateway
"""

import asyncio
import json
import random
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic
from typing import Any, NoReturn

import discord
import structlog
import yarl
from aiohttp import ClientWebSocketResponse
from discord.gateway import DiscordWebSocket, ReconnectWebSocket
from discord.http import HTTPClient, Route

from channels.discord.errors import RAISED, translate
from channels.discord.resume_state import GatewaySession, ResumeState
from channels.discord.wire import Json
from config import Secret
from gateway.contract import Pulse
from gateway.errors import AuthRejected, ChannelError, Transient

log = structlog.get_logger()

MAX_LOGINS = 20
LOGIN_WINDOW = 3600.0
MAX_RATE_LIMIT_WAIT = 30.0
"""discord.py itself waits out rate limits up to this long, and raises longer ones. It accepts no lower value."""
CLOSE_TIMEOUT = 2.0
HELLO_TIMEOUT = 20.0
READY_TIMEOUT = 30.0
HEARTBEAT_SLACK = 1.75
"""Heartbeat intervals without an acknowledgement. Discord asks for one in 41 s, so a dead connection costs 72 s."""
MAX_RESUMES = 3
"""Failed attempts in a row to resume a session, before the bot logs in again."""
MAX_RESUME_FAILURES = 10
"""The same, with attempts that did not reach the session's host. Together they take about five minutes."""
MAX_RECONNECT_DELAY = 60.0
RECONNECT_REQUEST_INTERVAL = 30.0
"""Seconds between two reconnect requests that are still routine. Discord sends one every few hours."""
KEEP_SESSION = 4000
"""Close code that keeps the session, so that it can be resumed. 1000 would end it."""

_random = random.Random()  # noqa: S311 - not for secrets


class LoginRateLimit:
    """Counts logins (IDENTIFY), because Discord revokes the token of a bot that logs in more than 1,000 times a day.

    Resuming a session is not a login. `times` outlives a connection, so that the limit holds across restarts of the
    channel.
    """

    def __init__(self, times: deque[float], clock: Callable[[], float] = monotonic) -> None:
        self._times = times
        self._clock = clock

    @property
    def is_first(self) -> bool:
        """Whether the bot has not logged in yet."""
        return not self._times

    def delay(self) -> float:
        """Return the seconds until the next login is allowed."""
        if len(self._times) < MAX_LOGINS:
            return 0.0
        return max(0.0, self._times[-MAX_LOGINS] + LOGIN_WINDOW - self._clock())

    def count(self) -> None:
        self._times.append(self._clock())
        while len(self._times) > MAX_LOGINS:
            self._times.popleft()


class DiscordClient(discord.Client):
    """discord.py's client with another base URL, whose gateway frames go to `on_frame` as raw text.

    discord.py would start a task for each event, which loses their order.
    """

    def __init__(self, base_url: str | None, on_frame: Callable[[str], None]) -> None:
        # Voice is not used, so the warnings about its missing libraries are noise.
        discord.VoiceClient.warn_nacl = discord.VoiceClient.warn_dave = False
        intents = discord.Intents.none()
        intents.guilds = True
        intents.guild_messages = True
        intents.dm_messages = True
        intents.message_content = True
        super().__init__(
            intents=intents,
            allowed_mentions=discord.AllowedMentions.none(),
            max_messages=None,
            enable_debug_events=True,
        )
        self._on_frame = on_frame
        self.http: _HttpClient = _HttpClient(base_url)
        # discord.py has no public way to replace the HTTP client of its state.
        self._connection.http = self.http
        # Without parsers, discord.py does not cache whole servers, and does not fail on events it cannot read.
        self._connection.parsers = {}

    def dispatch(self, event: str, /, *args: Any, **_kwargs: Any) -> None:  # noqa: ANN401 - as in the base class
        if event == "socket_raw_receive":
            self._on_frame(args[0])

    def drop_content_intent(self) -> None:
        """Connect without the Message Content intent, which Discord would refuse to this application."""
        self._connection._intents.message_content = False  # noqa: SLF001 - the public `intents` returns a copy.


class _HttpClient(HTTPClient):
    """discord.py has one base URL for all clients of a process; here it can differ per account."""

    def __init__(self, base_url: str | None) -> None:
        super().__init__(loop=discord.utils.MISSING, max_ratelimit_timeout=MAX_RATE_LIMIT_WAIT)
        self._base_url = base_url.rstrip("/") if base_url else Route.BASE
        self.socket: ClientWebSocketResponse | None = None
        """The newest WebSocket. discord.py loses the reference if the gateway never sends HELLO."""

    async def ws_connect(self, url: str, *, compress: int = 0) -> ClientWebSocketResponse:
        self.socket = None
        self.socket = await super().ws_connect(url, compress=compress)
        return self.socket

    async def request(self, route: Route, **options: Any) -> Any:  # noqa: ANN401 - as in the base class
        route.url = self._base_url + route.url.removeprefix(Route.BASE)
        return await super().request(route, **options)


class DiscordGatewayConnection:
    """One bot's connection to the gateway. The caller opens and closes `client`."""

    def __init__(
        self,
        base_url: str | None,
        token: Secret,
        login_limit: LoginRateLimit,
        pulse: Pulse,
        *,
        hello_timeout: float = HELLO_TIMEOUT,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.client = DiscordClient(base_url, self._receive)
        self._token = token
        self._login_limit = login_limit
        self._pulse = pulse
        self._hello_timeout = hello_timeout
        self._sleep = sleep
        self._on_event: Callable[[str, Json, int], None] | None = None
        self._resume_state: ResumeState | None = None
        self._session: GatewaySession | None = None
        self._failures = 0  # Since the connection was last up, as is `_resumes`.
        self._resumes = 0
        self._heartbeat_interval = 0.0
        self._is_up = False
        self._reconnect_requested_at: float | None = None
        self._deadline: asyncio.Timeout | None = None

    async def run(self, on_event: Callable[[str, Json, int], None], resume_state: ResumeState | None = None) -> None:
        """Stay connected until cancelled. Call `on_event` with each event and its number, in order; it must not block.

        With a `resume_state`, first resume the session that the last node has saved. Raises `AuthRejected` if Discord
        rejects the bot. All other errors lead to another attempt.
        """
        self._on_event = on_event
        self._resume_state = resume_state
        self._session = None if resume_state is None else resume_state.session
        self._failures = self._resumes = 0
        while True:
            is_routine = False
            error: ChannelError
            try:
                await self._connect()
            except ReconnectWebSocket as request:
                error = translate(request, self._token)
                # Discord moves long-lived connections to another host, which is no outage. A gateway that asks
                # again and again is one.
                now, before = asyncio.get_running_loop().time(), self._reconnect_requested_at
                if self._is_up:
                    self._reconnect_requested_at = now
                    is_routine = before is None or now - before >= RECONNECT_REQUEST_INTERVAL
            except RAISED as raised:
                error = translate(raised, self._token)
            if isinstance(error, AuthRejected):
                raise error
            if self._resumes >= MAX_RESUMES or self._failures >= MAX_RESUME_FAILURES:
                self._session = None
            if is_routine:
                continue
            self._pulse.down(str(error))
            delay = error.retry_after if isinstance(error, Transient) else None
            if delay is None:
                # Exponential backoff with jitter, so that many bots do not return at the same moment.
                delay = min(2.0 ** min(self._failures, 10), MAX_RECONNECT_DELAY) * _random.uniform(0.5, 1.0)
            await self._sleep(delay)
            self._failures += 1

    async def _connect(self) -> NoReturn:
        """Log in or resume, then read events until something is raised."""
        self._is_up = False
        session = self._session
        url = yarl.URL(session.url) if session else await self._wait_for_login()
        socket: DiscordWebSocket | None = None
        try:
            async with asyncio.timeout(self._hello_timeout):
                socket = await DiscordWebSocket.from_client(
                    self.client,
                    initial=session is None,
                    gateway=url,
                    session=session.id if session else None,
                    sequence=session.sequence if session else None,
                    resume=session is not None,
                )
            self._resumes += session is not None
            # The deadline is READY_TIMEOUT at first. Once up, each heartbeat acknowledgement extends it.
            async with asyncio.timeout(READY_TIMEOUT) as self._deadline:
                while True:
                    await socket.poll_event()
        finally:
            self._deadline = None
            if socket is not None:
                # discord.py clears the id when the gateway says that the session cannot be resumed.
                known = socket.session_id
                self._session = (
                    GatewaySession(id=known, sequence=socket.sequence, url=str(socket.gateway)) if known else None
                )
            # A dead peer does not answer the close frame, so do not wait for it.
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    if socket is not None:
                        await socket.close(KEEP_SESSION)
                    elif self.client.http.socket is not None:
                        await self.client.http.socket.close(code=KEEP_SESSION)

    async def _wait_for_login(self) -> yarl.URL:
        """Wait until a login is allowed, and return the URL to connect to."""
        if not self._login_limit.is_first:
            # Discord requires a random delay of 1 to 5 s before IDENTIFY when a session is invalid.
            await self._sleep(_random.uniform(1.0, 5.0))
        _, url, limit = await self.client.http.get_bot_gateway()
        delay = self._login_limit.delay()
        if limit["remaining"] <= 0:
            delay = max(delay, limit["reset_after"] / 1000)
        if delay:
            self._pulse.down(f"The bot has logged in too often. The next login is in {delay:.0f} s.")
            await self._sleep(delay)
        self._login_limit.count()
        if self._resume_state is not None:
            await self._resume_state.login()
        return yarl.URL(url)

    def _receive(self, text: str) -> None:
        """Handle a frame of the gateway, before discord.py reads it."""
        frame: Json = json.loads(text)
        match frame.get("op"):
            case DiscordWebSocket.HELLO:
                self._heartbeat_interval = frame["d"]["heartbeat_interval"] / 1000
            case DiscordWebSocket.HEARTBEAT_ACK:
                self._extend_deadline()
            case DiscordWebSocket.DISPATCH:
                event = str(frame["t"])
                if event in {"READY", "RESUMED"}:
                    self._is_up = True
                    self._failures = self._resumes = 0
                    self._extend_deadline()
                    self._pulse.up()
                if event == "READY" and not frame["d"].get("guilds"):
                    log.info("bot_in_no_server", hint="Invite the bot to a server, or send it a direct message.")
                if self._on_event is not None:
                    self._on_event(event, frame["d"], int(frame["s"]))

    def _extend_deadline(self) -> None:
        # Only acknowledgements extend it, not events: a half-dead connection may still deliver events.
        if self._is_up and self._deadline is not None and self._deadline.when() is not None:
            timeout = self._heartbeat_interval * HEARTBEAT_SLACK
            self._deadline.reschedule(asyncio.get_running_loop().time() + timeout)
