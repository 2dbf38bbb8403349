"""A Telegram channel that receives updates by webhook: Telegram calls a path of the gateway's HTTP server."""

import hmac
import secrets
from collections.abc import Mapping, Sequence
from http import HTTPStatus

from aiohttp import web

from channels.telegram.channel import TelegramChannel, settings_table
from channels.telegram.webhook_receiver import WebhookAlbums, WebhookRegistration
from config import Secret
from gateway.contract import Access, Caller, ChannelContext, Deliver, Route
from gateway.errors import CannotStart, Transient

WEBHOOK_URL = "webhook_url"
SECRET_HEADER = "X-Telegram-Bot-Api-Secret-Token"  # noqa: S105 - the header's name.


class TelegramWebhookChannel(TelegramChannel):
    """One bot that Telegram calls. Telegram proves itself by a secret that is generated at each start."""

    def __init__(self, context: ChannelContext) -> None:
        super().__init__(context)
        base = context.settings.options[WEBHOOK_URL]
        # Telegram itself calls https only. A self-hosted Bot API server may call http.
        schemes = ("https://",) if context.settings.api_base is None else ("https://", "http://")
        if not isinstance(base, str) or not base.startswith(schemes):
            raise CannotStart(
                f"{settings_table(context)}.options.{WEBHOOK_URL} must be the public address of this gateway, like "
                "https://bot.example.org. Telegram calls https addresses only."
            )
        self._path = f"/{context.name}/{context.account}/webhook"
        self._url = base.rstrip("/") + self._path
        self._secret = Secret(secrets.token_urlsafe(32))
        self._albums: WebhookAlbums | None = None

    def routes(self) -> Sequence[Route]:
        return [
            Route(method="POST", path=self._path, access=Access.CHANNEL, handle=self._handle, knows=self._is_telegram)
        ]

    async def run(self, deliver: Deliver) -> None:
        async with self._connected(deliver) as (api, handler):
            albums = WebhookAlbums(handler, self._context.notebook)
            await albums.resume()
            self._albums = albums
            try:
                pulse = self._context.pulse
                await WebhookRegistration(api=api, pulse=pulse, url=self._url, secret=self._secret).run()
            finally:
                self._albums = None

    async def _handle(self, request: web.Request, _: Caller) -> web.StreamResponse:
        """Respond once the update is durable. After any status but 200, Telegram sends the update again later."""
        if self._albums is None:
            return _unavailable("Telegram is not connected yet.")
        try:
            await self._albums.receive(await request.text())
        except Transient as error:
            return _unavailable(str(error))
        return web.json_response({})

    def _is_telegram(self, headers: Mapping[str, str]) -> bool:
        given = headers.get(SECRET_HEADER, "").encode(errors="surrogateescape")
        return hmac.compare_digest(given, self._secret.reveal().encode())


def _unavailable(reason: str) -> web.Response:
    return web.json_response({"error": reason}, status=HTTPStatus.SERVICE_UNAVAILABLE)
