"""A fake Bot API server. It speaks Telegram's wire format, and fails on request."""

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from html.parser import HTMLParser
from time import time
from typing import Any

from aiohttp import web

TOKEN = "123456:canary-AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw"
BOT = {"id": 123456, "is_bot": True, "first_name": "Gate", "username": "gate_bot"}
ADA = {"id": 42, "is_bot": False, "first_name": "Ada", "last_name": "L"}
BOB = {"id": 77, "is_bot": False, "first_name": "Bob"}
GROUP = {"id": -1001, "type": "supergroup", "title": "The group"}
KNOWN_TAGS = {"b", "i", "s", "a", "code", "pre", "blockquote"}
TEST_TIMEOUT = 120.0

Json = dict[str, Any]  # JSON of any shape.


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    method: str
    fields: dict[str, str]
    at: float = field(default_factory=time, compare=False)

    def json(self, name: str) -> Any:  # noqa: ANN401 - as `Json`.
        return json.loads(self.fields[name])


def refusal(status: int, description: str, **parameters: int) -> tuple[int, Json]:
    return status, {"ok": False, "error_code": status, "description": description, "parameters": parameters}


CONFLICT = refusal(409, "Conflict: terminated by other getUpdates request; make sure that only one bot is running")
WEBHOOK_IS_SET = refusal(409, "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook")
UNPARSABLE = refusal(400, "Bad Request: can't parse entities: Unsupported start tag")
DROP: tuple[int, Json] = (0, {})
"""A scripted response: the connection is cut."""


@dataclass(slots=True)
class FakeBotApi:
    """`scripted[method]` are responses that are given, first in first out, before the method works normally.

    Methods in `lacks` do not exist, and methods in `held` never respond.

    `files` has the files that people have sent, by file id; None stands for an endless file. Files that the bot sends
    are in the fields of its call, as Latin-1 text.
    """

    url: str = ""
    scripted: defaultdict[str, deque[tuple[int, Any]]] = field(default_factory=lambda: defaultdict(deque))
    lacks: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    webhook: str = ""
    secret: str = ""
    webhook_failure: str = ""
    pending: list[Json] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    files: dict[str, bytes | None] = field(default_factory=dict)
    polls: int = 0
    """Requests for updates that are under way."""
    most_polls: int = 0
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _next_update: int = 500
    _next_message: int = 100

    async def say(self, text: str, *, chat: Json | None = None, sender: Json = ADA, **fields: object) -> Json:
        """Send a message as a person, by default in a private chat with the bot."""
        chat = chat or {"id": sender["id"], "type": "private", "first_name": sender["first_name"]}
        message = {"message_id": self._message_id(), "date": int(time()), "chat": chat, "from": sender, **fields}
        return await self.update(message={**message, "text": text} if text else message)

    async def press(self, message: Json, data: str, *, sender: Json = ADA) -> None:
        query = {"id": f"q{self._message_id()}", "from": sender, "chat_instance": "1", "message": message, "data": data}
        await self.update(callback_query=query)

    async def update(self, **content: Json) -> Json:
        update = {"update_id": self._next_update, **content}
        self._next_update += 1
        async with self._changed:
            self.pending.append(update)
            self._changed.notify_all()
        return update

    async def acknowledged(self, *, left: int = 0) -> None:
        """Wait until the bot has acknowledged all updates but the last `left`."""
        await self._until(lambda: len(self.pending) <= left)

    async def called(self, method: str, *, times: int = 1) -> Call:
        """Wait for the `times`-th call of `method`, and return it."""
        await self._until(lambda: len(self.calls_of(method)) >= times)
        return self.calls_of(method)[times - 1]

    def calls_of(self, method: str) -> list[Call]:
        return [call for call in self.calls if call.method == method]

    async def _until(self, is_true: Any) -> None:  # noqa: ANN401 - a predicate.
        async with asyncio.timeout(TEST_TIMEOUT), self._changed:
            await self._changed.wait_for(is_true)

    def _message_id(self) -> int:
        self._next_message += 1
        return self._next_message

    async def serve(self, request: web.Request) -> web.Response:
        method = request.match_info["method"]
        fields = await _fields(request)
        async with self._changed:
            self.calls.append(Call(method=method, fields=fields))
            self._changed.notify_all()
        if method in self.held:
            await asyncio.Event().wait()
        status, body = await self._answer(method, fields, request.match_info["token"])
        if (status, body) == DROP and request.transport is not None:
            request.transport.abort()
        text = body if isinstance(body, str) else json.dumps(body)
        body = text.encode(errors="surrogateescape")  # A test may send what is not UTF-8.
        return web.Response(status=status or 500, body=body, content_type="application/json")

    async def serve_file(self, request: web.Request) -> web.StreamResponse:
        if self.scripted["file"]:
            status, _ = self.scripted["file"].popleft()
            return web.Response(status=status)
        if request.match_info["token"] != TOKEN:
            return web.Response(status=401)
        content = self.files[request.match_info["name"]]
        return await _endless(request) if content is None else web.Response(body=content)

    async def _answer(self, method: str, fields: dict[str, str], token: str) -> tuple[int, Any]:
        if self.scripted[method]:
            return self.scripted[method].popleft()
        if token != TOKEN:
            return refusal(401, "Unauthorized")
        if method in self.lacks:
            return refusal(404, "Not Found: method not found")
        if method == "getUpdates":
            self.polls += 1
            self.most_polls = max(self.most_polls, self.polls)
            try:
                return await self._get_updates(fields)
            finally:
                self.polls -= 1
        return self._result(method, fields)

    def _result(self, method: str, fields: dict[str, str]) -> tuple[int, Json]:
        result: object = True
        if method == "getMe":
            result = BOT
        elif method in {"sendMessage", "editMessageText", "sendMessageDraft"}:
            if fields.get("parse_mode") == "HTML" and not is_html(fields["text"]):
                return UNPARSABLE
            result = True if method == "sendMessageDraft" else self._sent(fields)
        elif method in {"sendPhoto", "sendDocument", "sendVoice", "sendAudio"}:
            result = self._sent({"text": "", **fields})
        elif method == "getFile":
            if fields["file_id"] not in self.files:
                return refusal(400, "Bad Request: file is too big")
            path = f"documents/{fields['file_id']}"
            result = {"file_id": fields["file_id"], "file_unique_id": "U", "file_path": path}
        elif method == "deleteWebhook":
            self.webhook = ""
        elif method == "setWebhook":
            self.webhook = fields["url"]
            self.secret = fields["secret_token"]
        elif method == "getWebhookInfo":
            result = self._webhook_info()
        return 200, {"ok": True, "result": result}

    def _webhook_info(self) -> Json:
        info = {"url": self.webhook, "has_custom_certificate": False, "pending_update_count": len(self.pending)}
        failed = {"last_error_date": int(time()), "last_error_message": self.webhook_failure}
        return {**info, **failed} if self.webhook_failure else info

    def _sent(self, fields: dict[str, str]) -> Json:
        chat = {"id": int(fields["chat_id"]), "type": "private"}
        number = int(fields.get("message_id") or self._message_id())
        return {"message_id": number, "date": int(time()), "chat": chat, "from": BOT, "text": fields["text"]}

    async def _get_updates(self, fields: dict[str, str]) -> tuple[int, Json]:
        if self.webhook:
            return WEBHOOK_IS_SET
        offset = int(fields.get("offset", 0))
        async with self._changed:
            self.pending[:] = [update for update in self.pending if update["update_id"] >= offset]
            self._changed.notify_all()
            try:
                async with asyncio.timeout(int(fields.get("timeout", 0))):
                    await self._changed.wait_for(lambda: self.pending)
            except TimeoutError:
                pass
            return 200, {"ok": True, "result": self.pending[: int(fields.get("limit", 100))]}


@asynccontextmanager
async def bot_api(first_update: int = 500) -> AsyncIterator[FakeBotApi]:
    fake = FakeBotApi(_next_update=first_update, _next_message=first_update - 400)
    app = web.Application(client_max_size=100_000_000)
    app.router.add_get("/file/bot{token}/documents/{name}", fake.serve_file)
    app.router.add_post("/bot{token}/{method}", fake.serve)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        fake.url = f"http://{host}:{port}"
        yield fake
    finally:
        await runner.cleanup()


async def _endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    with suppress(ConnectionError):
        while True:
            await response.write(bytes(65_536))
    return response


async def _fields(request: web.Request) -> dict[str, str]:
    """Read the fields of a call as a form has them. Telegram takes them as JSON too."""
    if request.content_type == "application/json":
        given = await request.json()
        return {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}
    form = await request.post()
    return {name: _form_field(value) for name, value in form.items()}


def _form_field(value: object) -> str:
    return value.file.read().decode("latin-1") if isinstance(value, web.FileField) else str(value)


def is_html(text: str) -> bool:
    """Return whether Telegram would parse `text`: only known tags, correctly nested and closed."""
    parser = _Checker()
    parser.feed(text)
    parser.close()
    return parser.is_good and not parser.open


def visible(text: str) -> str:
    parser = _Checker()
    parser.feed(text)
    parser.close()
    return "".join(parser.shown)


class _Checker(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.shown: list[str] = []
        self.links: list[str] = []
        self.is_good = True

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.is_good &= tag in KNOWN_TAGS and not (tag == "blockquote" and tag in self.open)
        self.open.append(tag)
        self.links += [value or "" for name, value in attrs if name == "href"]

    def handle_endtag(self, tag: str) -> None:
        self.is_good &= bool(self.open) and self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.shown.append(data)


def links(text: str) -> list[str]:
    parser = _Checker()
    parser.feed(text)
    parser.close()
    return parser.links


def text_update(text: str, number: int, sender: Json = ADA) -> Json:
    """Return an update as Telegram sends it: a private message, with `number` as its update id and message id."""
    chat = {"id": sender["id"], "type": "private", "first_name": sender["first_name"]}
    message = {"message_id": number, "date": 4_000_000_000, "chat": chat, "from": sender, "text": text}
    return {"update_id": number, "message": message}


def album_part(number: int, sender: Json = ADA) -> Json:
    update = text_update("", number, sender)
    photo = {"file_id": f"photo{number}", "file_unique_id": f"U{number}", "width": 1, "height": 1}
    update["message"] |= {"media_group_id": "A", "photo": [photo], "caption": f"look {number}"}
    del update["message"]["text"]
    return update
