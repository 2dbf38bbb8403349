"""One client's way in: its frames are read in order, and each is answered before the next is read."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote

from aiohttp import WSMessage, WSMsgType

from channels.websocket.bucket import Bucket
from channels.websocket.hub import Hub
from channels.websocket.send_queue import Outlet
from channels.websocket.wire import (
    Ack,
    AskCommands,
    AskHistory,
    AskSessions,
    BadFrame,
    Commands,
    Echo,
    Failure,
    FileLink,
    Frame,
    Hello,
    History,
    HistoryLine,
    Message,
    Say,
    Sessions,
    Upload,
    parse,
)
from gateway.contract import (
    Address,
    Attachment,
    Browser,
    Caller,
    Deliver,
    Enclosure,
    Inbound,
    Line,
    OpenQuestion,
    PeerKind,
    Sender,
    SessionInfo,
    Verdict,
)
from gateway.errors import Transient

__all__ = ["Conversation", "Desk", "Render", "TooInsistent", "link_to"]

Render = Callable[[str], str]
"""Markdown to safe HTML; slow for long texts, so it is called in a thread."""

FRAMES_PER_SECOND = 20
FRAMES_AT_ONCE = 60
PATIENCE = 200
"""How many frames above the limit, in a row, are answered before the connection is closed."""
HISTORY_CHARS = 1_000_000
NOT_NOW = "This was not taken just now; try again in a moment."


class TooInsistent(Exception):
    """The client keeps sending above its limit; close the connection."""


@dataclass(slots=True, kw_only=True)
class Desk:
    """What every conversation of a channel needs. `deliver` is there only while the channel runs."""

    channel: str
    account: str
    browser: Browser
    hub: Hub
    render: Render | None = None
    deliver: Deliver | None = None


class Conversation:
    def __init__(self, desk: Desk, caller: Caller, outlet: Outlet) -> None:
        self._desk = desk
        self._outlet = outlet
        self._sender = Sender(id=caller.name, name=caller.name, is_owner=caller.is_owner)
        self._address = Address(channel=desk.channel, account=desk.account, kind=PeerKind.DIRECT, peer=caller.name)
        self._bucket = Bucket(rate=FRAMES_PER_SECOND, burst=FRAMES_AT_ONCE)
        self._refused = 0

    def greet(self) -> None:
        """Say hello, and ask again what somebody has to answer: it may have been asked before this client came."""
        self._outlet.offer(Hello(name=self._sender.name))
        for question in self._desk.browser.questions(self._address, self._sender):
            self._outlet.offer(_asked(question))

    async def hear(self, message: WSMessage) -> None:
        """Answer one frame; whatever is in it, only `TooInsistent` is raised."""
        is_within_limit = self._spend()
        if message.type is not WSMsgType.TEXT:
            self._fail("Only text frames are understood here.")
            return
        try:
            frame = parse(message.data)
        except BadFrame as problem:
            self._fail(str(problem), id=problem.id)
            return
        if is_within_limit:
            await self._answer(frame)
        else:
            name = frame.id if isinstance(frame, Say) else None
            self._fail("This is too fast; wait a moment.", id=name, can_retry=True)

    def may_be_answered(self) -> bool:
        """Count a frame that says nothing (a ping or a pong) against the limit."""
        return self._spend()

    def _spend(self) -> bool:
        if self._bucket.take():
            self._refused = 0
            return True
        self._refused += 1
        if self._refused > PATIENCE:
            raise TooInsistent
        return False

    async def _answer(self, frame: Frame) -> None:
        match frame:
            case Say():
                await self._deliver(frame)
            case AskSessions():
                self._outlet.offer(Sessions(sessions=self._sessions()))
            case AskHistory():
                self._outlet.offer(await self._history(frame.limit))
            case AskCommands():
                self._outlet.offer(Commands(commands=self._desk.browser.commands()))

    async def _deliver(self, said: Say) -> None:
        """Acknowledge only what the core has taken: until then the client keeps it, and may send it again."""
        if self._desk.deliver is None:
            self._fail(NOT_NOW, id=said.id, can_retry=True)
            return
        inbound = self._inbound(said)
        try:
            verdict = await self._desk.deliver(inbound)
        except Transient:
            self._fail(NOT_NOW, id=said.id, can_retry=True)
            return
        self._outlet.offer(Ack(id=said.id, verdict=verdict, at=inbound.sent_at))
        if verdict is Verdict.ACCEPTED:
            echo = Echo(id=said.id, text=_shown(said), at=inbound.sent_at)
            self._desk.hub.broadcast(self._sender.id, echo, besides=self._outlet)
        elif verdict is Verdict.DUPLICATE:  # It may have lost the connection before its answer came.
            for answer in self._desk.hub.answers(self._sender.id, said.id):
                self._outlet.offer(answer)

    def _inbound(self, said: Say) -> Inbound:
        return Inbound(
            address=self._address,
            sender=self._sender,
            event_id=said.id,
            text=said.text,
            sent_at=datetime.now(UTC),
            message_id=said.id,
            attachments=tuple(map(_attachment, said.files)),
        )

    def _sessions(self) -> list[SessionInfo]:
        return self._desk.browser.sessions(self._address, self._sender)

    async def _history(self, limit: int) -> History:
        lines = await self._desk.browser.history(self._address, self._sender, limit=limit)
        active = next((session.number for session in self._sessions() if session.is_active), None)
        shown = await asyncio.to_thread(_show, _newest(lines, HISTORY_CHARS), self._desk.render)
        return History(session=active, lines=shown)

    def _fail(self, sentence: str, *, id: str | None = None, can_retry: bool = False) -> None:  # noqa: A002 - as on the wire.
        self._outlet.offer(Failure(text=sentence, id=id, can_retry=can_retry))


def _asked(question: OpenQuestion) -> Message:
    message = question.message
    return Message(
        key=question.key,
        kind=message.kind,
        text=message.text,
        at=datetime.now(UTC),
        reply_to=message.reply_to,
        buttons=message.buttons,
        is_question=True,
    )


def _attachment(file: Upload) -> Attachment:
    return Attachment(kind=file.kind, name=file.name, media_type=file.media_type, size=file.size, ref=file.ref)


def _shown(said: Say) -> str:
    """Return what a person sees of a message, as the history will show it."""
    return "\n".join(filter(None, [said.text, *(f"[{file.kind}: {file.name}]" for file in said.files)]))


def link_to(file: Enclosure) -> FileLink:
    """Say where a file that the agent has sent can be downloaded."""
    return FileLink(name=file.name, size=file.size, url=f"/files/{quote(file.ref)}?name={quote(file.name)}")


def _newest(lines: list[Line], max_chars: int) -> list[Line]:
    """Drop the oldest lines until the rest has at most `max_chars` characters; the newest always stays."""
    kept: list[Line] = []
    for line in reversed(lines):
        max_chars -= len(line.text)
        if kept and max_chars < 0:
            break
        kept.append(line)
    return kept[::-1]


def _show(lines: list[Line], render: Render | None) -> list[HistoryLine]:
    """Add HTML to the agent's lines; what a person typed is shown as it was typed."""
    return [
        HistoryLine(
            role=line.role,
            text=line.text,
            at=line.at,
            html=render(line.text) if render is not None and line.role != "user" and not line.file else None,
            file=link_to(line.file) if line.file else None,
        )
        for line in lines
    ]
