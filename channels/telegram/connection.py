"""The connection of one bot: everything that needs aiogram. `channel` imports this module in a thread."""

from types import TracebackType
from typing import Self

from channels.telegram.api import BotApi
from channels.telegram.channel import TEXT_LIMIT
from channels.telegram.polling import Poller
from channels.telegram.sender import TelegramSender
from channels.telegram.updates import UpdateHandler
from channels.telegram.webhook_receiver import WebhookAlbums, WebhookRegistration
from config import Secret
from gateway.contract import ChannelContext, Deliver
from gateway.errors import Transient


class TelegramConnection:
    """Leaving the `async with` closes the connection.

    Building one takes long, but touches no event loop, so it can be done in a thread.
    """

    def __init__(self, context: ChannelContext, token: Secret) -> None:
        self._context = context
        self._albums: WebhookAlbums | None = None
        self.api = BotApi(token, context.settings.api_base)
        self.sender = TelegramSender(self.api, TEXT_LIMIT)

    async def __aenter__(self) -> Self:
        await self.api.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.api.__aexit__(kind, error, trace)

    async def poll(self, deliver: Deliver, *, max_wait: int) -> None:
        """Poll for updates until cancelled. Telegram may hold each request for `max_wait` seconds."""
        async with UpdateHandler(self.api, self._context, deliver) as handler:
            # The bot may have had a webhook in its last run. Saved parts of albums were acknowledged then, so Telegram
            # does not send them again.
            await WebhookAlbums(self.api, handler, self._context.notebook).resume()
            poller = Poller(self.api, handler, self._context.pulse, max_wait=max_wait)
            await poller.run()

    async def listen(self, deliver: Deliver, *, url: str, secret: Secret) -> None:
        """Register `url` as the webhook until cancelled. Telegram's calls are to be passed to `receive`."""
        async with UpdateHandler(self.api, self._context, deliver) as handler:
            albums = WebhookAlbums(self.api, handler, self._context.notebook)
            await albums.resume()
            self._albums = albums
            try:
                await WebhookRegistration(api=self.api, pulse=self._context.pulse, url=url, secret=secret).run()
            finally:
                self._albums = None

    async def receive(self, raw: object) -> None:
        """Take an update from the webhook. Raises `Transient` if it cannot be taken now."""
        if self._albums is None:
            raise Transient("Telegram is not connected yet.")
        await self._albums.receive(raw)
