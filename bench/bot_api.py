"""A minimal Bot API server: a bot fetches the messages of simulated people, who wait for its answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from time import time

from aiohttp import web

TOKEN = "123456:bench-AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsa"  # noqa: S105 - no bot has this token.
_ME = {"id": 123456, "is_bot": True, "first_name": "Bench", "username": "bench_bot"}


class BotApi:
    """One person per chat, who sends a message and waits for the answer."""

    def __init__(self) -> None:
        self.url = ""
        self._pending: list[dict[str, object]] = []
        self._has_updates = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._number = 0

    async def ask(self, chat: int) -> None:
        """Send a message, and return when the answer has arrived."""
        self._number += 1
        person = {"id": chat, "is_bot": False, "first_name": "Ada"}
        private = {"id": chat, "type": "private", "first_name": "Ada"}
        message = {
            "message_id": self._number,
            "date": int(time()),
            "chat": private,
            "from": person,
            "text": "Good day!",
        }
        answered = self._waiting[chat] = asyncio.get_running_loop().create_future()
        self._pending.append({"update_id": self._number, "message": message})
        self._has_updates.set()
        await answered

    async def serve(self, request: web.Request) -> web.Response:
        method = request.match_info["method"]
        fields = await (request.json() if request.content_type == "application/json" else request.post())
        result: object = True
        if method == "getMe":
            result = _ME
        elif method == "getUpdates":
            result = await self._updates(int(str(fields.get("offset", 0))), float(str(fields.get("timeout", 0))))
        elif method == "sendMessage":
            result = self._sent(int(str(fields["chat_id"])), str(fields["text"]))
        return web.json_response({"ok": True, "result": result})

    async def _updates(self, offset: int, wait: float) -> list[dict[str, object]]:
        self._pending = [update for update in self._pending if int(str(update["update_id"])) >= offset]
        if not self._pending:
            self._has_updates.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._has_updates.wait()
        return self._pending[:100]

    def _sent(self, chat: int, text: str) -> dict[str, object]:
        self._number += 1
        if (waiting := self._waiting.pop(chat, None)) is not None:
            waiting.set_result(None)
        private = {"id": chat, "type": "private"}
        return {"message_id": self._number, "date": int(time()), "chat": private, "from": _ME, "text": text}


@asynccontextmanager
async def served() -> AsyncIterator[BotApi]:
    api = BotApi()
    app = web.Application()
    app.router.add_post("/bot{token}/{method}", api.serve)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        api.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield api
    finally:
        await runner.cleanup()
