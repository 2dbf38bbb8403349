"""A fake Discord server: REST API and gateway in Discord's wire format. Behaves as documented unless scripted."""

import asyncio
import json
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from tests.channels.discord.fake_gateway import Gateway
from tests.channels.harness import TEST_TIMEOUT

Json = dict[str, Any]  # Discord payloads have no fixed shape.

TOKEN = "MTIzNDU2Nzg5.Gcanary.AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw"
BOT = {"id": "900", "username": "gate", "discriminator": "0000", "global_name": None, "avatar": None, "bot": True}
ADA = {"id": "42", "username": "ada", "discriminator": "0", "global_name": "Ada L", "avatar": None}
BOB = {"id": "77", "username": "bob", "discriminator": "0", "global_name": None, "avatar": None}
GUILD, CHANNEL, THREAD, ADAS, BOBS = "500", "501", "502", "601", "602"
DIRECT = {"42": ADAS, "77": BOBS}
EPOCH = 1_420_070_400_000
SEES_CONTENT = 1 << 19
LOST = (0, "lost")
"""Scripted response: the request is handled, but the connection breaks before the response."""
CUT = (0, "cut")
"""Scripted response: the connection breaks before the request is handled."""
DONE, UNDONE = (0, "done"), (0, "undone")
"""Scripted responses: the server never responds, after it has handled the request or without handling it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    name: str
    path: str
    body: Json


def refusal(status: int, code: int, message: str, **more: object) -> tuple[int, Json]:
    return status, {"code": code, "message": message, **more}


TOO_FAST = refusal(429, 0, "You are being rate limited.", retry_after=3600.0)


@dataclass(slots=True)
class FakeDiscord:
    """`scripted[name]` are the next responses of a call, in order. After them it behaves normally."""

    url: str = ""
    flags: int = SEES_CONTENT
    gateway: Gateway = field(default_factory=Gateway)
    scripted: defaultdict[str, deque[tuple[int, Any]]] = field(default_factory=lambda: defaultdict(deque))
    calls: list[Call] = field(default_factory=list)
    messages: defaultdict[str, list[Json]] = field(default_factory=lambda: defaultdict(list))
    commands: list[Json] = field(default_factory=list)
    forgets_nonces: bool = False
    lost_histories: set[str] = field(default_factory=set)
    files: dict[str, bytes] = field(default_factory=dict)
    remaining: int = 1000
    _nonces: dict[tuple[str, str], Json] = field(default_factory=dict)
    ephemeral: list[Json] = field(default_factory=list)
    expired: bool = False
    """Whether interactions are too old to be answered."""
    _interactions: dict[str, Json] = field(default_factory=dict)
    """Channel, flags and response of each interaction, by its token."""
    _last: int = 0

    async def say(self, text: str, *, channel: str | None = None, author: Json = ADA, **fields: object) -> Json:
        """Write as a person, by default a direct message to the bot."""
        message = self.written(text, channel=channel or DIRECT[author["id"]], author=author, **fields)
        await self.gateway.dispatch("MESSAGE_CREATE", message)
        return message

    def written(self, text: str, *, channel: str = ADAS, author: Json = ADA, **fields: object) -> Json:
        """Add a message to a channel without sending an event to the bot."""
        number = self._snowflake()
        message = {
            "id": number,
            "channel_id": channel,
            "author": author,
            "content": text,
            "timestamp": datetime.now(UTC).isoformat(),
            "edited_timestamp": None,
            "type": 0,
            "flags": 0,
            "mentions": [],
            "mention_roles": [],
            "mention_everyone": False,
            "attachments": [],
            "embeds": [],
            "pinned": False,
            "tts": False,
            **fields,
        }
        self.messages[channel].append(message)
        is_direct = channel in DIRECT.values()
        return message if is_direct else {**message, "guild_id": GUILD, "member": {"nick": None, "roles": []}}

    async def call_bot(self, text: str, *, channel: str = CHANNEL, author: Json = BOB, **fields: object) -> Json:
        """Mention the bot in a server, as a person."""
        said = f"<@{BOT['id']}> {text}"
        return await self.say(said, channel=channel, author=author, mentions=[BOT], **fields)

    async def edit(self, message: Json, text: str) -> None:
        edited = {**message, "content": text, "edited_timestamp": datetime.now(UTC).isoformat()}
        await self.gateway.dispatch("MESSAGE_UPDATE", edited)

    async def act(self, kind: int, data: Json, *, channel: str = ADAS, author: Json = ADA, **fields: object) -> Json:
        """Use a slash command (2), press a button (3) or type an option (4), as a person."""
        number = self._snowflake()
        where: Json = {"id": channel, "type": 1 if channel in DIRECT.values() else 0}
        who: Json = {"user": author}
        if channel not in DIRECT.values():
            who = {"guild_id": GUILD, "member": {"user": author, "nick": None, "roles": []}}
        if channel == THREAD:
            where |= {"type": 11, "parent_id": CHANNEL}
        interaction = {
            "id": number,
            "application_id": "901",
            "type": kind,
            "data": data,
            "channel_id": channel,
            "channel": where,
            "token": f"interaction-{number}",
            "version": 1,
            **who,
            **fields,
        }
        self._interactions[f"interaction-{number}"] = {"channel": channel, "flags": 0}
        await self.gateway.dispatch("INTERACTION_CREATE", interaction)
        return interaction

    def private(self, channel: str = CHANNEL) -> list[Json]:
        """Return the messages in a channel that only one person sees."""
        return [message for message in self.ephemeral if message["channel_id"] == channel]

    def sent(self, channel: str = ADAS) -> list[Json]:
        """Return the messages of the bot in a channel."""
        return [message for message in self.messages[channel] if message["author"]["id"] == BOT["id"]]

    async def heard(self, count: int, channel: str = ADAS) -> Json:
        """Return the `count`-th message of the bot, waiting for it."""
        await self.until(lambda: len(self.sent(channel)) >= count)
        return self.sent(channel)[count - 1]

    async def called(self, name: str, *, times: int = 1) -> Call:
        await self.until(lambda: len(self.calls_of(name)) >= times)
        return self.calls_of(name)[times - 1]

    def calls_of(self, name: str) -> list[Call]:
        return [call for call in self.calls if call.name == name]

    async def until(self, is_true: Callable[[], object]) -> None:
        async with asyncio.timeout(TEST_TIMEOUT), self.gateway.changed:
            await self.gateway.changed.wait_for(is_true)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        name = _NAMES.get((request.method, request.match_info.route.resource.canonical), "?")  # type: ignore[union-attr]  # It has matched.
        body, files = await _body(request)
        if files:
            body = {**body, "files": files}
        scripted = self.scripted[name].popleft() if self.scripted[name] else None
        answer = scripted if scripted and scripted not in (LOST, DONE) else self._do(name, request, body)
        async with self.gateway.changed:
            self.calls.append(Call(name=name, path=request.path, body=body))
            self.gateway.changed.notify_all()
        if scripted in (DONE, UNDONE):
            await asyncio.Event().wait()
        if scripted in (LOST, CUT) and request.transport is not None:
            request.transport.abort()
        return _response(*answer)

    def _do(self, name: str, request: web.Request, body: Json) -> tuple[int, Any]:
        if name == "file":
            return 200, self.files.get(request.match_info["name"], b"")
        if not name.endswith("interaction") and request.headers.get("Authorization") != f"Bot {TOKEN}":
            return refusal(401, 0, "401: Unauthorized")
        known: Callable[[dict[str, str], Json], tuple[int, Any]] | None = getattr(self, f"_do_{name}", None)
        return (204, None) if known is None else known({**request.match_info, **request.query}, body)

    def _do_me(self, _path: dict[str, str], _body: Json) -> tuple[int, Any]:
        return 200, BOT

    def _do_application(self, _path: dict[str, str], _body: Json) -> tuple[int, Any]:
        application = {
            "id": "901",
            "name": "gate",
            "description": "",
            "icon": None,
            "bot_public": True,
            "bot_require_code_grant": False,
            "verify_key": "",
            "flags": self.flags,
            "owner": ADA,
            "team": None,
        }
        return 200, application

    def _do_gateway(self, _path: dict[str, str], _body: Json) -> tuple[int, Any]:
        limit = {"total": 1000, "remaining": self.remaining, "reset_after": 1000, "max_concurrency": 1}
        return 200, {"url": self.gateway.url, "shards": 1, "session_start_limit": limit}

    def _do_send(self, path: dict[str, str], body: Json) -> tuple[int, Any]:
        channel, text = path["channel"], body.get("content") or ""
        if len(text.encode("utf-16-le")) // 2 > 2000:
            return refusal(400, 50035, "Invalid Form Body")
        if not text.strip() and not body.get("files"):
            return refusal(400, 50006, "Cannot send an empty message")
        if len(body.get("nonce") or "") > 25:
            return refusal(400, 50035, "Invalid Form Body")
        key = (channel, body.get("nonce") or "")
        if body.get("enforce_nonce") and key in self._nonces and not self.forgets_nonces:
            return 200, self._nonces[key]
        extras = {name: body[name] for name in ("components", "message_reference", "flags", "files") if name in body}
        self._nonces[key] = self.written(text.strip(), channel=channel, author=BOT, **extras)
        return 200, self._nonces[key]

    def _do_answer_interaction(self, path: dict[str, str], body: Json) -> tuple[int, Any]:
        self._interactions[path["token"]] |= {"flags": (body.get("data") or {}).get("flags", 0), "is_deferred": True}
        return 204, None

    def _do_read_interaction(self, path: dict[str, str], _body: Json) -> tuple[int, Any]:
        interaction = self._interactions[path["token"]]
        if self.expired or not interaction.get("is_deferred"):
            return refusal(404, 10015, "Unknown Webhook")
        if (shown := interaction.get("response")) is not None:
            return 200, {**shown, "flags": interaction["flags"]}
        return 200, {"id": "0", "content": "", "flags": interaction["flags"] | 128}

    def _do_edit_interaction(self, path: dict[str, str], body: Json) -> tuple[int, Any]:
        """Show the response below its command. It is as private as the acknowledgement."""
        interaction = self._interactions[path["token"]]
        if self.expired or not interaction.get("is_deferred"):
            return (
                refusal(401, 50027, "Invalid Webhook Token") if self.expired else refusal(404, 10008, "Unknown Message")
            )
        if (known := interaction.get("response")) is not None:
            known |= {"content": body["content"]}
            return 200, known
        interaction["response"] = self._shown(interaction, body, flags=interaction["flags"])
        return 200, interaction["response"]

    def _do_tell_interaction(self, path: dict[str, str], body: Json) -> tuple[int, Any]:
        """Show a further message. Directly after the acknowledgement, it takes that one's place and privacy."""
        interaction = self._interactions[path["token"]]
        if (
            interaction.get("is_deferred")
            and "response" not in interaction
            and body.get("flags", 0) != interaction["flags"]
        ):
            return refusal(400, 50035, "The ephemeral flag would be ignored.")
        return 200, self._shown(interaction, body, flags=body.get("flags", 0))

    def _do_clear_interaction(self, path: dict[str, str], _body: Json) -> tuple[int, Any]:
        self._interactions[path["token"]]["is_deferred"] = False
        return 204, None

    def _shown(self, interaction: Json, body: Json, *, flags: int) -> Json:
        message = self.written(body["content"], channel=interaction["channel"], author=BOT, interaction={"type": 2})
        message["components"] = body.get("components") or []
        if flags & 64:
            self.messages[interaction["channel"]].pop()
            self.ephemeral.append(message)
        return message

    def _do_edit(self, path: dict[str, str], body: Json) -> tuple[int, Any]:
        for message in self.messages[path["channel"]]:
            if message["id"] == path["message"]:
                message.update(body)
                return 200, message
        return refusal(404, 10008, "Unknown Message")

    def _do_message(self, path: dict[str, str], _body: Json) -> tuple[int, Any]:
        found = [message for message in self.messages[path["channel"]] if message["id"] == path["message"]]
        return (200, found[0]) if found else refusal(404, 10008, "Unknown Message")

    def _do_history(self, path: dict[str, str], _body: Json) -> tuple[int, Any]:
        if path["channel"] in self.lost_histories:
            return refusal(503, 0, "Service Unavailable")
        limit, found = int(path["limit"]), self.messages[path["channel"]]
        if "after" in path:
            page = [each for each in found if int(each["id"]) > int(path["after"])][:limit]
        else:
            page = [each for each in found if int(each["id"]) < int(path.get("before", 1 << 63))][-limit:]
        return 200, list(reversed(page))

    def _do_channel(self, path: dict[str, str], _body: Json) -> tuple[int, Any]:
        if path["channel"] == THREAD:
            return 200, {"id": THREAD, "type": 11, "parent_id": CHANNEL, "guild_id": GUILD}
        return 200, {"id": path["channel"], "type": 0, "guild_id": GUILD}

    def _do_roles(self, _path: dict[str, str], _body: Json) -> tuple[int, Any]:
        return 200, self.gateway.guilds[0]["roles"]

    def _do_direct(self, _path: dict[str, str], body: Json) -> tuple[int, Any]:
        return 200, {"id": DIRECT[str(body["recipient_id"])], "type": 1, "recipients": []}

    def _do_commands(self, _path: dict[str, str], _body: Json) -> tuple[int, Any]:
        return 200, self.commands

    def _do_set_commands(self, _path: dict[str, str], body: Json) -> tuple[int, Any]:
        self.commands = [{"id": str(number), "version": "1", **each} for number, each in enumerate(body["list"])]
        return 200, self.commands

    def _snowflake(self) -> str:
        self._last = max(self._last + 1, (time.time_ns() // 1_000_000 - EPOCH) << 22)
        return str(self._last)


_ROUTES = {
    ("GET", "/users/@me"): "me",
    ("POST", "/users/@me/channels"): "direct",
    ("GET", "/oauth2/applications/@me"): "application",
    ("GET", "/gateway/bot"): "gateway",
    ("GET", "/guilds/{guild}/roles"): "roles",
    ("GET", "/channels/{channel}"): "channel",
    ("POST", "/channels/{channel}/messages"): "send",
    ("GET", "/channels/{channel}/messages"): "history",
    ("GET", "/channels/{channel}/messages/{message}"): "message",
    ("PATCH", "/channels/{channel}/messages/{message}"): "edit",
    ("PUT", "/channels/{channel}/messages/{message}/reactions/{emoji}/@me"): "react",
    ("DELETE", "/channels/{channel}/messages/{message}/reactions/{emoji}/@me"): "unreact",
    ("POST", "/channels/{channel}/typing"): "typing",
    ("GET", "/applications/{application}/commands"): "commands",
    ("PUT", "/applications/{application}/commands"): "set_commands",
    ("POST", "/interactions/{id}/{token}/callback"): "answer_interaction",
    ("POST", "/webhooks/{application}/{token}"): "tell_interaction",
    ("DELETE", "/webhooks/{application}/{token}/messages/@original"): "clear_interaction",
    ("GET", "/webhooks/{application}/{token}/messages/@original"): "read_interaction",
    ("PATCH", "/webhooks/{application}/{token}/messages/@original"): "edit_interaction",
    ("GET", "/files/{name}"): "file",
}
_NAMES = {(method, f"/api{path}"): name for (method, path), name in _ROUTES.items()}


async def _body(request: web.Request) -> tuple[Json, list[str]]:
    if request.content_type == "multipart/form-data":
        form = await request.post()
        files = [part.file.read().decode("latin-1") for part in form.values() if isinstance(part, web.FileField)]
        return json.loads(str(form["payload_json"])), files
    text = await request.text()
    parsed = json.loads(text) if text else {}
    return (parsed if isinstance(parsed, dict) else {"list": parsed}), []


def _response(status: int, body: object) -> web.Response:
    """Respond as Discord does: a content type without charset, and `Via` if Discord itself refused the request."""
    if isinstance(body, bytes):
        return web.Response(status=status, body=body)
    headers = {"Via": "1.1 google"} if status == 429 else {}
    if status == 204:
        return web.Response(status=status)
    return web.Response(
        status=status or 500, body=json.dumps(body).encode(), content_type="application/json", headers=headers
    )


@asynccontextmanager
async def discord_server() -> AsyncIterator[FakeDiscord]:
    fake = FakeDiscord()
    app = web.Application()
    for method, path in _NAMES:
        app.router.add_route(method, path, fake.serve)
    app.router.add_get("/gateway/", fake.gateway.serve)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.5)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        fake.url = f"http://{host}:{port}/api"
        fake.gateway.url = f"ws://{host}:{port}/gateway/"
        fake.gateway.token = TOKEN
        fake.gateway.ready = {
            "user": BOT,
            "guilds": [{"id": GUILD, "unavailable": True}],
            "application": {"id": "901", "flags": fake.flags},
        }
        fake.gateway.guilds = [_guild()]
        yield fake
    finally:
        await runner.cleanup()


def _guild() -> Json:
    return {
        "id": GUILD,
        "name": "The server",
        "channels": [{"id": CHANNEL, "type": 0, "name": "general", "position": 0, "permission_overwrites": []}],
        "threads": [],
        "members": [],
        "roles": [],
        "emojis": [],
        "stickers": [],
        "features": [],
        "member_count": 2,
        "owner_id": ADA["id"],
        "unavailable": False,
    }
