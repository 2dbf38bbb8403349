"""Everything that needs discord.py, as one: imported in a thread, so that nothing else waits for it."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Self

import discord
import structlog

from channels.discord.api import Api
from channels.discord.cache import Places
from channels.discord.catchup import Backlog, Chats
from channels.discord.channel import TEXT_LIMIT
from channels.discord.events import Reader
from channels.discord.gateway_connection import Client, Identifies, Line
from channels.discord.interactions import Interactions, is_same, menu
from channels.discord.sender import Outlet
from channels.discord.wire import BotIdentity
from config import Secret
from gateway.contract import Attachment, ChannelContext, Deliver, Pulse
from gateway.errors import AuthRejected, ChannelError, Undeliverable

log = structlog.get_logger()


class Vitals:
    """Several pulses as one, which is up when all of them are."""

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse
        self._down: dict[str, str] = {}

    def part(self, name: str, *, is_up: bool) -> "Part":
        if not is_up:
            self._down[name] = ""
        return Part(self, name)

    def set(self, name: str, reason: str | None) -> None:
        if reason is not None:
            self._down[name] = reason
            self._pulse.down(reason)
            return
        self._down.pop(name, None)
        if not self._down:
            self._pulse.up()


class Part:
    def __init__(self, whole: Vitals, name: str) -> None:
        self._whole = whole
        self._name = name

    def up(self) -> None:
        self._whole.set(self._name, None)

    def down(self, reason: str) -> None:
        self._whole.set(self._name, reason)


NO_CONTENT = (
    "The bot sees only what is said to it directly or with its name: for more, switch on Message Content Intent "
    "in Discord's Developer Portal, on the page Bot."
)


class Connection:
    """One bot's connection; leaving the `async with` closes it."""

    def __init__(self, context: ChannelContext, token: Secret, login_times: deque[float]) -> None:
        self._context = context
        self._token = token
        self._identifies = Identifies(login_times)
        self._client = Client(context.settings.api_base, self._hear)
        self._api = Api(self._client, token)
        self._line: Line | None = None
        self.outlet = Outlet(self._api, TEXT_LIMIT)

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    async def read(self, deliver: Deliver) -> None:
        """Log in, and hand over what people write until cancelled; raise `ChannelError`s only."""
        application = await self._api.login()
        if not _may_see_content(application):
            self._client.do_without_content()
            log.warning("message_content_missing", channel=self._context.name, reason=NO_CONTENT)
        await self._set_menu(application.id)
        troubles: BaseExceptionGroup[ChannelError] | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._read(deliver, tasks)
        except* ChannelError as found:
            troubles = found
        if troubles is not None:  # Raised up there it would be in a group again, before Python 3.11.4.
            raise _first(troubles)

    async def own_name(self) -> str:
        """Log in, ask who we are, and change nothing."""
        application = await self._api.login()
        return str(self._client.user or application.name)

    async def _read(self, deliver: Deliver, tasks: asyncio.TaskGroup) -> None:
        context, vitals = self._context, Vitals(self._context.pulse)
        bot = BotIdentity(
            channel=context.name,
            account=context.account,
            id=str(self._client.user.id if self._client.user else ""),
            must_be_mentioned=context.settings.require_mention,
        )
        chats = Chats(context.notebook)
        await chats.load()
        reader = Reader(
            bot=bot,
            chats=chats,
            backlog=Backlog(self._api, chats),
            places=Places(self._api),
            interactions=Interactions(self._api, bot, context.browser, tasks),
            pulse=vitals.part("reader", is_up=True),
            learn=self.outlet.learn,
        )
        line = vitals.part("line", is_up=False)
        self._line = Line(self._client, self._token, self._identifies, line, reader.hear)
        tasks.create_task(self._line.run(), name=f"line:{context.name}:{context.account}")
        tasks.create_task(reader.run(deliver), name=f"reader:{context.name}:{context.account}")

    def fetch(self, attachment: Attachment) -> AsyncGenerator[bytes, None]:
        channel, message, number = (
            int(part) if part.isdecimal() else 0 for part in f"{attachment.ref}::".split(":")[:3]
        )
        if not (channel and message and number):
            raise Undeliverable("This is no file of Discord's.")
        return self._api.fetch(channel, message, number)

    def _hear(self, text: str) -> None:
        if self._line is not None:
            self._line.hear(text)

    async def _set_menu(self, application: int) -> None:
        """Tell Discord the slash commands, if it has others: it takes only so many changes a day."""
        wanted = menu(self._context.browser.commands())
        try:
            if not is_same(wanted, await self._api.commands(application)):
                await self._api.set_commands(application, wanted)
                log.info("menu_set", channel=self._context.name, commands=len(wanted))
        except AuthRejected:
            raise
        except ChannelError as trouble:  # The commands work without it, typed behind the bot's name.
            log.warning("menu_not_set", channel=self._context.name, reason=str(trouble))


def connect(context: ChannelContext, token: Secret, login_times: deque[float]) -> Connection:
    """Prepare a connection. It touches no event loop, so it can be called in a thread."""
    return Connection(context, token, login_times)


def _may_see_content(application: discord.AppInfo) -> bool:
    flags = application.flags
    return flags.gateway_message_content or flags.gateway_message_content_limited


def _first(troubles: BaseExceptionGroup[ChannelError]) -> ChannelError:
    found = troubles.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
