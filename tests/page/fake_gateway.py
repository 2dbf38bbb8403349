"""The real web channel and page on an HTTP server, with a scripted core behind them."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from msgspec.structs import replace

from channels.web.channel import WebChannel
from config import ChannelSettings
from gateway.adapters.services import InMemoryStore
from gateway.contract import (
    Address,
    Button,
    Caller,
    ChannelContext,
    CommandInfo,
    EarlierMessage,
    Inbound,
    Line,
    OpenQuestion,
    Outbound,
    OutboundKind,
    Sender,
    SessionInfo,
    Verdict,
)
from gateway.errors import NotAccepted
from gateway.http.responses import SECURITY_HEADERS

WORD_DELAY = 0.02
"""Seconds between two words of an answer: slow enough for a browser to draw them one by one."""

MAX_MESSAGE_CHARS = 32_000


@dataclass(slots=True, kw_only=True)
class Chat:
    number: int
    title: str = ""
    lines: list[Line] = field(default_factory=list)
    updated_at: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(slots=True)
class Ready:
    beats: asyncio.Event = field(default_factory=asyncio.Event)

    def up(self) -> None:
        self.beats.set()

    def down(self, reason: str) -> None: ...


class FakeGateway:
    """`answers` maps a message to the agent's Markdown; any other message is repeated in the answer."""

    def __init__(self) -> None:
        self.answers: dict[str, str] = {}
        self.chats = [Chat(number=1)]
        self.active = 1
        self.taken: list[Inbound] = []
        self.open_questions: list[OpenQuestion] = []
        self.hold = asyncio.Event()
        """Answers stop in the middle while this is cleared."""
        self.hold.set()
        self.refuses_for_now = False
        self.has_model = True
        self.has_transcription = False
        self.breaks_history = False
        """Each request for the history ends the connection, as a bug in the gateway would."""
        self.port = 0
        self._codes: set[str] = set()
        self._cookies: set[str] = set()
        self._turns: dict[str, asyncio.Task[None]] = {}
        self._lane = asyncio.Lock()
        self._seen: set[str] = set()
        self._ready = Ready()
        self._runner: web.AppRunner | None = None
        self._group = asyncio.TaskGroup()
        context = ChannelContext(
            name="web",
            account="default",
            settings=ChannelSettings(),
            browser=self,
            notebook=InMemoryStore(),
            pulse=self._ready,
        )
        self.channel = WebChannel(context)

    @asynccontextmanager
    async def open(self) -> AsyncIterator["FakeGateway"]:
        async with self._group:
            channel = self._group.create_task(self.channel.run(self.deliver), name="channel:web")
            await self._ready.beats.wait()
            await self.start()
            try:
                yield self
            finally:
                await self.stop()
                channel.cancel()
                for turn in self._turns.values():
                    turn.cancel()

    def login_link(self) -> str:
        code = secrets.token_urlsafe(8)
        self._codes.add(code)
        return f"{self.url}#code={code}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    async def start(self) -> None:
        """Listen; after a restart, on the same port as before."""
        app = web.Application()
        for route in self.channel.routes():
            app.router.add_route(route.method, route.path, self._guarded(route))
        app.router.add_post("/auth/exchange", self._exchange)
        app.router.add_get("/auth/whoami", self._whoami)
        app.router.add_post("/auth/logout", self._logout)
        app.on_response_prepare.append(_add_headers)
        self._runner = web.AppRunner(app, shutdown_timeout=0.05)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def idle(self) -> None:
        """Wait until all answers are complete."""
        if self._turns:
            await asyncio.wait(self._turns.values())

    def _guarded(self, route: Any) -> Any:  # noqa: ANN401 - aiohttp's own type for a handler is not public.
        async def handle(request: web.Request) -> web.StreamResponse:
            if route.access != "public" and not self._is_known(request):
                raise web.HTTPUnauthorized
            response: web.StreamResponse = await route.handle(request, Caller(name="owner", is_owner=True))
            return response

        return handle

    def _is_known(self, request: web.Request) -> bool:
        return request.cookies.get("visit") in self._cookies

    async def _exchange(self, request: web.Request) -> web.Response:
        code = (await request.json())["code"]
        if code not in self._codes:
            return web.json_response({"error": "no"}, status=401)
        self._codes.discard(code)
        cookie = secrets.token_urlsafe(8)
        self._cookies.add(cookie)
        response = web.json_response({"ok": True})
        response.set_cookie("visit", cookie, httponly=True, samesite="Strict")
        return response

    async def _logout(self, request: web.Request) -> web.Response:
        self._cookies.discard(request.cookies.get("visit", ""))
        return web.json_response({"ok": True})

    async def _whoami(self, request: web.Request) -> web.Response:
        if not self._is_known(request):
            return web.json_response({"error": "Who are you?"}, status=401)
        return web.json_response({"name": "owner"})

    def sessions(self, _address: Address, _sender: Sender, _guild: str | None = None) -> list[SessionInfo]:
        return [
            SessionInfo(
                number=chat.number,
                title=chat.title,
                messages=len(chat.lines),
                updated_at=chat.updated_at,
                is_active=chat.number == self.active,
            )
            for chat in sorted(self.chats, key=lambda chat: chat.number, reverse=True)
        ]

    async def history(self, _address: Address, _sender: Sender, *, limit: int) -> list[Line]:
        if self.breaks_history:
            raise ConnectionError("the history is broken")
        return self.chat(self.active).lines[-limit:]

    def questions(self, _address: Address, _sender: Sender) -> list[OpenQuestion]:
        return self.open_questions

    async def earlier(self, _address: Address, _sender: Sender, _event_id: str) -> EarlierMessage:
        return EarlierMessage()

    def commands(self, _address: Address | None = None, _sender: Sender | None = None) -> list[CommandInfo]:
        return [
            CommandInfo(name="new", arguments="[title]", summary="Start a new conversation"),
            CommandInfo(name="session list", arguments="", summary="List your conversations"),
            CommandInfo(name="session resume", arguments="<n>", summary="Go back to a conversation"),
            CommandInfo(name="stop", arguments="", summary="Stop the answer that is being written"),
            CommandInfo(name="help", arguments="", summary="Show this list"),
        ]

    def needs_setup(self, _address: Address, _sender: Sender) -> bool:
        return not self.has_model

    def transcribes(self) -> bool:
        return self.has_transcription

    def max_message_chars(self) -> int:
        return MAX_MESSAGE_CHARS

    def chat(self, number: int) -> Chat:
        return next(chat for chat in self.chats if chat.number == number)

    async def deliver(self, inbound: Inbound) -> Verdict:
        if self.refuses_for_now:
            raise NotAccepted("the disk is busy")
        if inbound.event_id in self._seen:
            return Verdict.DUPLICATE
        self._seen.add(inbound.event_id)
        self.taken.append(inbound)
        if inbound.text.startswith("/"):
            await self._run_command(inbound)
        else:
            turn = self._group.create_task(self._answer(inbound, self.active), name=f"turn:{inbound.event_id}")
            self._turns[inbound.event_id] = turn
        return Verdict.ACCEPTED

    async def _run_command(self, inbound: Inbound) -> None:
        buttons: tuple[Button, ...] = ()
        match inbound.text.split():
            case ["/new", *_]:
                self.active = max(chat.number for chat in self.chats) + 1
                self.chats.append(Chat(number=self.active))
                answer = f"Started session {self.active}."
            case ["/session", "resume", number]:
                self.active = int(number)
                answer = f"Back in session {number}."
            case ["/session", "list"]:
                buttons = tuple(
                    Button(label=chat.title, command=f"/session resume {chat.number}") for chat in self.chats
                )
                answer = "Sessions (newest first)"
            case ["/stop"]:
                for turn in self._turns.values():
                    turn.cancel()
                answer = "Stopped."
            case _:
                answer = "\n".join(f"/{command.name} - {command.summary}" for command in self.commands())
        notice = Outbound(address=inbound.address, text=answer, reply_to=inbound.message_id, buttons=buttons)
        await self.channel.send(notice, key=f"notice-{inbound.event_id}")

    async def _answer(self, inbound: Inbound, number: int) -> None:
        async with self._lane:
            await self._run_turn(inbound, number)

    async def _run_turn(self, inbound: Inbound, number: int) -> None:
        chat = self.chat(number)
        chat.title = chat.title or inbound.text[:40]
        turn = inbound.event_id
        chat.lines.append(Line(role="user", text=inbound.text, at=datetime.now(UTC), event_id=turn, turn=turn))
        whole = self.answers.get(inbound.text, f"You said “{inbound.text}”, and this is an answer of several words.")
        reply = Outbound(
            address=inbound.address, text="", kind=OutboundKind.REPLY, reply_to=inbound.message_id, session=number
        )
        shown = ""
        try:
            for word in whole.split(" "):
                shown += f" {word}" if shown else word
                await self.channel.draft(replace(reply, text=shown), key=turn)
                await asyncio.sleep(WORD_DELAY)
                await self.hold.wait()
        finally:
            chat.updated_at = datetime.now(UTC)
            chat.lines.append(Line(role="assistant", text=shown, at=chat.updated_at, turn=turn))
            await self.channel.send(replace(reply, text=shown), key=turn)


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(SECURITY_HEADERS)
