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
    """One bot that Telegram calls. Telegram proves itself by a secret that is generated at each start.

    In a cluster, Telegram's calls arrive at any node. So all nodes have the same secret, made from the token, and the
    webhook stays registered when one of them stops.
    """

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
        shared = hmac.new(self._token.reveal().encode(), self._url.encode(), "sha256").hexdigest()
        self._secret = Secret(shared if context.is_in_cluster else secrets.token_urlsafe(32))
        self._albums: WebhookAlbums | None = None

    def routes(self) -> Sequence[Route]:
        return [
            Route(
                method="POST",
                path=self._path,
                access=Access.CHANNEL,
                handle=self._handle,
                knows=self._is_telegram,
                takes_key=True,  # An update that comes twice is known by its id.
            )
        ]

    async def run(self, deliver: Deliver) -> None:
        async with self._connected(deliver) as (api, handler):
            albums = WebhookAlbums(handler, self._context.notebook, is_in_cluster=self._context.is_in_cluster)
            if self._context.is_in_cluster:
                handler.run_in_background(albums.deliver_abandoned(), name="telegram:abandoned_albums")
            else:
                await albums.resume()
            self._albums = albums
            registration = WebhookRegistration(
                api=api,
                pulse=self._context.pulse,
                url=self._url,
                secret=self._secret,
                is_shared=self._context.is_in_cluster,
            )
            try:
                await registration.run()
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
