"""Everything that needs aiogram, as one: imported in a thread, so that nothing else waits for it."""

import asyncio
import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Self

import structlog

from channels.telegram.albums import Arrived
from channels.telegram.api import BotApi
from channels.telegram.breath import Breath
from channels.telegram.channel import TEXT_LIMIT
from channels.telegram.gathering import Gathering, gathering
from channels.telegram.listening import Listener
from channels.telegram.outlet import Outlet
from channels.telegram.polling import Poller
from channels.telegram.taking import Taker
from channels.telegram.wire import BotIdentity
from config import Secret
from gateway.contract import ChannelContext, CommandInfo, Deliver
from gateway.errors import ChannelError, Transient
from gateway.text import excerpt

__all__ = ["Connection", "connect"]

log = structlog.get_logger()

_MENU_NAME = re.compile(r"[a-z0-9_]{1,32}")
SUMMARY_WIDTH = 256
MENU_PAUSES = (5.0, 60.0, 600.0, 3_600.0)


class Connection:
    """One bot's connection; leaving the `async with` closes it."""

    def __init__(self, context: ChannelContext, api: BotApi) -> None:
        self._context = context
        self._api = api
        self.files = api.files
        self._breath = Breath()
        self.outlet = Outlet(api, TEXT_LIMIT, on_sent=self._breath.answered)
        self._albums: Gathering | None = None
        self._bot: BotIdentity | None = None

    async def __aenter__(self) -> Self:
        await self._api.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._api.__aexit__(kind, error, trace)

    async def poll(self, deliver: Deliver, *, longest: int) -> None:
        """Fetch updates until cancelled, in requests of so many seconds at most."""
        # What was kept of an album when the bot had a webhook was acknowledged, so it would not come again.
        async with Taker(self._api, deliver, self._context.relocate) as taker, self._gathering(taker):
            identify = partial(self._identify, taker)
            poller = Poller(self._api, identify, self._context.pulse, longest=longest, breath=self._breath)
            await poller.run(taker)

    async def listen(self, deliver: Deliver, *, url: str, secret: Secret) -> None:
        """Have Telegram call `url` until cancelled, and take what comes to `receive`."""
        listener = Listener(api=self._api, pulse=self._context.pulse, url=url, secret=secret)
        async with (
            Taker(self._api, deliver, self._context.relocate) as taker,
            self._gathering(taker) as albums,
        ):
            self._albums = albums
            try:
                await listener.run()
            finally:
                self._albums = None

    async def receive(self, raw: object) -> None:
        """Take an update that Telegram has sent; `Transient` while we cannot. What nobody can read is passed over."""
        if self._albums is None:
            raise Transient("Telegram is not connected yet.")
        await self._albums.receive(raw)

    def _gathering(self, taker: Taker) -> AbstractAsyncContextManager[Gathering]:
        return gathering(read=self._api.update, take=partial(self._take, taker), notebook=self._context.notebook)

    async def _take(self, taker: Taker, group: Sequence[Arrived]) -> None:
        self._bot = self._bot or await self._identify(taker)
        await taker.take(group, self._bot)

    async def own_name(self) -> str:
        """Ask who we are, and change nothing."""
        me = await self._api.me()
        return f"@{me.username or me.id}"

    async def _identify(self, taker: Taker) -> BotIdentity:
        """Ask who we are, and have the menu hung up meanwhile."""
        me = await self._api.me()
        taker.meanwhile(self._set_menu(), name="telegram:menu")
        return BotIdentity(
            channel=self._context.name,
            account=self._context.account,
            id=me.id,
            username=me.username or "",
            must_be_mentioned=self._context.settings.require_mention,
        )

    async def _set_menu(self) -> None:
        """Hang up the menu, in several tries: the commands work without it."""
        for pause in MENU_PAUSES:
            try:
                await self._api.set_menu(_menu(self._context.browser.commands()))
            except Transient as trouble:
                log.warning("menu_not_set", channel=self._context.name, reason=str(trouble))
                await asyncio.sleep(pause if trouble.retry_after is None else trouble.retry_after)
            except ChannelError as refusal:  # A refused token is heard of elsewhere too.
                log.warning("menu_not_set", channel=self._context.name, reason=str(refusal))
                return
            else:
                return


def connect(context: ChannelContext, token: Secret) -> Connection:
    """Prepare a connection. It takes long and touches no event loop, so it can be called in a thread."""
    return Connection(context, BotApi(token, context.settings.api_base))


def _menu(commands: Iterable[CommandInfo]) -> dict[str, str]:
    """Choose the commands that Telegram's menu can hold: it knows single words only, so others go by an alias."""
    return {
        name: excerpt(command.summary, SUMMARY_WIDTH)
        for command in commands
        if (name := _menu_name(command)) is not None
    }


def _menu_name(command: CommandInfo) -> str | None:
    return next(filter(_MENU_NAME.fullmatch, (command.name, *command.aliases)), None)
