"""The line to Discord's gateway: keeps it open, takes it up where it broke, and notices when it has gone dead.

discord.py would do that by itself, but for ever, at any pace, and without telling anybody.
https://discord.com/developers/docs/events/gateway
"""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
import yarl
from discord.gateway import DiscordWebSocket, ReconnectWebSocket

from channels.discord.client import Client, Frame
from channels.discord.errors import RAISED, translate
from channels.discord.identifies import Identifies
from config import Secret
from gateway.contract import Pulse
from gateway.errors import AuthRejected, ChannelError, Transient

__all__ = ["Line"]

log = structlog.get_logger()

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
