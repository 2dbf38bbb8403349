"""Connects one bot: logs in, registers its slash commands, and runs the gateway connection and the event reader.

This module and its imports need discord.py, which takes long to import. So `channel.py` imports it in a thread.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator
from functools import partial
from types import TracebackType
from typing import Self

import structlog

from channels.discord.api import DiscordApi
from channels.discord.cache import GuildCache
from channels.discord.catchup import HistoryReader, ReadPositions
from channels.discord.channel import TEXT_LIMIT
from channels.discord.events import EventReader
from channels.discord.gateway_connection import LOGIN_WINDOW, DiscordGatewayConnection, LoginRateLimit
from channels.discord.interactions import Interactions, are_same_commands, slash_commands
from channels.discord.responses import CommandResponses
from channels.discord.resume_state import ResumeState
from channels.discord.sender import DiscordSender
from channels.discord.wire import DiscordBot
from config import Secret
from gateway.contract import Attachment, ChannelContext, Deliver, Pulse
from gateway.errors import AuthRejected, ChannelError, Undeliverable

log = structlog.get_logger()

NO_CONTENT = (
    "The bot sees only direct messages and messages that mention it. To let it see all messages, turn on "
    "Message Content Intent in Discord's Developer Portal, on the Bot page."
)

_FILE_REF = re.compile(r"([0-9]+):([0-9]+):([0-9]+)")  # Channel, message and file, as `wire.media` writes them.


class PartPulse:
    """The pulse of one part of the connection. The channel is up while no part is `down`."""

    def __init__(self, pulse: Pulse, down: set["PartPulse"]) -> None:
        self._pulse = pulse
        self._down = down

    def up(self) -> None:
        self._down.discard(self)
        if not self._down:
            self._pulse.up()

    def down(self, reason: str) -> None:
        self._down.add(self)
        self._pulse.down(reason)


class DiscordConnection:
    """One bot's connection. Leaving the `async with` closes it. The constructor may run in any thread."""

    def __init__(self, context: ChannelContext, token: Secret, login_times: deque[float]) -> None:
        self._context = context
        down = set[PartPulse]()
        self._reader_pulse = PartPulse(context.pulse, down)
        gateway_pulse = PartPulse(context.pulse, down)
        down.add(gateway_pulse)  # Not connected yet, so a busy reader must not report the channel as up.
        self._login_times = login_times
        self._gateway = DiscordGatewayConnection(
            context.settings.api_base, token, LoginRateLimit(login_times), gateway_pulse
        )
        self._api = DiscordApi(self._gateway.client, token)
        self._responses = CommandResponses(self._api, are_shared=context.is_in_cluster)
        self.sender = DiscordSender(self._api, TEXT_LIMIT, self._responses)

    async def __aenter__(self) -> Self:
        await self._gateway.client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._gateway.client.__aexit__(kind, error, trace)

    async def run(self, deliver: Deliver) -> None:
        """Log in, and deliver messages until cancelled. Raises `ChannelError`s only."""
        context = self._context
        application = await self._api.login()
        if not (application.flags.gateway_message_content or application.flags.gateway_message_content_limited):
            self._gateway.client.drop_content_intent()
            log.warning("message_content_missing", channel=context.name, reason=NO_CONTENT)
        await self._register_commands(application.id)
        bot = DiscordBot(
            channel=context.name,
            account=context.account,
            id=self._api.bot_id,
            must_be_mentioned=context.settings.require_mention,
        )
        if context.is_in_cluster:  # Another node may receive. This one can send.
            context.pulse.up()
        await context.lead(partial(self._receive, bot, deliver))

    async def _receive(self, bot: DiscordBot, deliver: Deliver) -> None:
        context = self._context
        # New ones each time: another node may have received since.
        positions, resume_state = ReadPositions(context.notebook), None
        if context.is_in_cluster:
            resume_state = ResumeState(context.notebook, self._login_times, max_age=LOGIN_WINDOW)
        errors: BaseExceptionGroup[ChannelError] | None = None
        try:
            await positions.load()
            if resume_state is not None:
                await resume_state.load()
            async with asyncio.TaskGroup() as tasks:
                reader = EventReader(
                    bot=bot,
                    positions=positions,
                    history=HistoryReader(self._api, positions),
                    guilds=GuildCache(self._api),
                    interactions=Interactions(self._api, bot, context.browser, self._responses, tasks),
                    pulse=self._reader_pulse,
                    on_direct_chat=self.sender.learn_direct_channel,
                    resume_state=resume_state,
                )
                name = f"{context.name}:{context.account}"
                tasks.create_task(self._gateway.run(reader.receive, resume_state), name=f"gateway:{name}")
                tasks.create_task(reader.run(deliver), name=f"reader:{name}")
        except* ChannelError as group:
            errors = group
        if errors is not None:  # Before Python 3.11.4, an error raised inside `except*` was wrapped in a group again.
            raise _first(errors)

    async def _register_commands(self, application: int) -> None:
        """Register the slash commands if they have changed: Discord limits the number of changes per day."""
        wanted = slash_commands(self._context.browser.commands())
        try:
            if not are_same_commands(wanted, await self._api.slash_commands(application)):
                await self._api.set_slash_commands(application, wanted)
                log.info("menu_set", channel=self._context.name, commands=len(wanted))
        except AuthRejected:
            raise
        except ChannelError as error:  # People can still type the commands after a mention of the bot.
            log.warning("menu_not_set", channel=self._context.name, reason=str(error))

    async def bot_name(self) -> str:
        """Log in and return the name of the bot. Changes nothing on Discord."""
        application = await self._api.login()
        return str(self._gateway.client.user or application.name)

    def fetch(self, attachment: Attachment) -> AsyncGenerator[bytes, None]:
        ids = _FILE_REF.fullmatch(attachment.ref)
        if ids is None:
            raise Undeliverable("This attachment is not a Discord file.")
        return self._api.fetch(*map(int, ids.groups()))


def _first(group: BaseExceptionGroup[ChannelError]) -> ChannelError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
