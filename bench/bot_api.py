"""A minimal Bot API server: a bot fetches the messages of simulated people, who wait for its answers."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from ssl import SSLContext
from time import time
from typing import Any

from aiohttp import web

TOKEN = "123456:bench-AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsa"  # noqa: S105 - no bot has this token.
_ME = {"id": 123456, "is_bot": True, "first_name": "Bench", "username": "bench_bot"}
_FIXED: dict[str, object] = {
    "getMe": _ME,
    "getMyCommands": [],
    "getWebhookInfo": {"url": "", "has_custom_certificate": False, "pending_update_count": 0},
}
"""Methods with a fixed result. Methods that return neither an object nor a list have the result true."""


class BotApi:
    """One person per chat, who sends a message and waits for the answer."""

    def __init__(self) -> None:
        self.url = ""
        self.tls_port = 0
        self._pending: list[dict[str, object]] = []
        self._has_updates = asyncio.Event()
        self._waiting: dict[int, tuple[str, asyncio.Future[None]]] = {}
        self._number = 0
        self.polled = asyncio.Event()
        """Set by each `getUpdates`."""
        self.messages: dict[int, str] = {}
        """The bot's messages by their id, as last edited. Drafts are not among them."""

    async def ask(self, chat: int, text: str = "Good day!", answer: str = "") -> None:
        """Send a message, and return when the bot has written a message that contains `answer`."""
        self._number += 1
        name = f"Ada {chat}"
        person = {"id": chat, "is_bot": False, "first_name": name}
        private = {"id": chat, "type": "private", "first_name": name}
        message = {
            "message_id": self._number,
            "date": int(time()),
            "chat": private,
            "from": person,
            "text": text,
        }
        answered = asyncio.get_running_loop().create_future()
        self._waiting[chat] = answer, answered
        self._pending.append({"update_id": self._number, "message": message})
        self._has_updates.set()
        await answered

    async def serve(self, request: web.Request) -> web.Response:
        method, fields = request.match_info["method"], await _fields(request)
        result: object = True
        if method in _FIXED:
            result = _FIXED[method]
        elif method == "getUpdates":
            self.polled.set()
            result = await self._updates(int(fields.get("offset", 0)), float(fields.get("timeout", 0)))
        elif method == "deleteWebhook" and str(fields.get("drop_pending_updates")).lower() == "true":
            self._pending.clear()
        elif method in {"sendMessage", "editMessageText"}:
            self._number += 1
            number = int(fields.get("message_id", self._number))
            result = self._written(int(fields["chat_id"]), number, str(fields["text"]))
        return web.json_response({"ok": True, "result": result})

    async def _updates(self, offset: int, wait: float) -> list[dict[str, object]]:
        self._pending = [update for update in self._pending if int(str(update["update_id"])) >= offset]
        if not self._pending:
            self._has_updates.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._has_updates.wait()
        return self._pending[:100]

    def _written(self, chat: int, number: int, text: str) -> dict[str, object]:
        self.messages[number] = text
        answer, waiting = self._waiting.get(chat, ("", None))
        if waiting is not None and answer in text:
            del self._waiting[chat]
            if not waiting.done():
                waiting.set_result(None)
        private = {"id": chat, "type": "private"}
        return {"message_id": number, "date": int(time()), "chat": private, "from": _ME, "text": text}


async def _fields(request: web.Request) -> Mapping[str, Any]:  # Any: JSON has numbers where a form has text.
    """Return the parameters of a method. Telegram accepts a query, a form and JSON."""
    if request.content_type == "application/json" and request.can_read_body:
        return {**request.query, **await request.json()}
    return {**request.query, **await request.post()}


@asynccontextmanager
async def served(tls: SSLContext | None = None) -> AsyncIterator[BotApi]:
    """Run the server on loopback, and with `tls` on a second port as well."""
    api = BotApi()
    app = web.Application()
    app.router.add_route("*", "/bot{token}/{method}", api.serve)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        api.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        if tls is not None:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
            api.tls_port = runner.addresses[1][1]
        yield api
    finally:
        await runner.cleanup()
