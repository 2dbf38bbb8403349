"""The webhook: Telegram calls us, on a path of our own, and knows a secret that nobody else does."""

import hmac
import secrets
from collections.abc import Mapping, Sequence
from http import HTTPStatus

from aiohttp import web

from channels.telegram.channel import TelegramChannel, key_of
from config import Secret
from gateway.contract import Access, Caller, ChannelContext, Deliver, Route
from gateway.errors import CannotStart, Transient

__all__ = ["WEBHOOK_URL", "WebhookChannel"]

WEBHOOK_URL = "webhook_url"
SECRET_HEADER = "X-Telegram-Bot-Api-Secret-Token"  # noqa: S105 - the header's name.


class WebhookChannel(TelegramChannel):
    """One bot that is called. The secret is made anew at each start: it is in no file, and an old one opens nothing."""

    def __init__(self, context: ChannelContext) -> None:
        super().__init__(context)
        self._path = f"/{context.name}/{context.account}/webhook"
        self._url = _base(context) + self._path
        self._secret = Secret(secrets.token_urlsafe(32))

    def routes(self) -> Sequence[Route]:
        return [
            Route(method="POST", path=self._path, access=Access.CHANNEL, handle=self._handle, knows=self._is_telegram)
        ]

    async def run(self, deliver: Deliver) -> None:
        async with self._connected() as connection:
            await connection.listen(deliver, url=self._url, secret=self._secret)

    async def _handle(self, request: web.Request, _: Caller) -> web.StreamResponse:
        """Answer once the core has the update; any other answer makes Telegram send it again later."""
        try:
            await self._receive(await request.json())
        except Transient as trouble:
            return web.json_response({"error": str(trouble)}, status=HTTPStatus.SERVICE_UNAVAILABLE)
        return web.json_response({})

    async def _receive(self, raw: object) -> None:
        if self._connection is None:
            raise Transient("Telegram is not connected yet.")
        await self._connection.receive(raw)

    def _is_telegram(self, headers: Mapping[str, str]) -> bool:
        given = headers.get(SECRET_HEADER, "").encode(errors="surrogateescape")
        return hmac.compare_digest(given, self._secret.reveal().encode())


def _base(context: ChannelContext) -> str:
    base = context.settings.options[WEBHOOK_URL]
    schemes = ("https://",) if context.settings.api_base is None else ("https://", "http://")
    if not isinstance(base, str) or not base.startswith(schemes):
        raise CannotStart(
            f"{key_of(context)}.options.{WEBHOOK_URL} has to be where Telegram reaches this gateway, like "
            "https://bot.example.org; Telegram calls https only."
        )
    return base.rstrip("/")
