"""Programs as users: their identity, the channels of their answers, and how they follow the turn of a prompt."""

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path

from msgspec import Struct

from config.types import API_CHANNEL
from gateway.access.role_table import Role
from gateway.access.roles import role_of
from gateway.access.rules import Live
from gateway.contract import Address, Caller, Deliver, Outbound, OutboundKind, PeerKind, Receipt, Sender, TextLimit
from gateway.sessions import Entry, entries

OWNER = "owner"
"""The id of a program that uses the token of the HTTP server, which belongs to the owner."""


def sender_of(caller: Caller) -> Sender:
    """Return the author of a program's messages."""
    if caller.token:
        return Sender(id=caller.token, name=caller.name, token=caller.token)
    return Sender(id=OWNER, name=caller.name or OWNER, is_owner=caller.is_owner)


def role_of_caller(live: Live, caller: Caller) -> Role:
    """Return the role of a program."""
    return role_of(live, Address(channel=API_CHANNEL, kind=PeerKind.DIRECT, peer=caller.token), sender_of(caller))


RecordNotice = Callable[[Outbound], Awaitable[None]]
"""Writes a notice to the transcript of its session, once. Raises `Transient` if it has to be repeated later."""


class ProgramChannel:
    """The channel of the answers to programs. A program reads the transcript or follows it, so it is sent no answer.

    A notice that says why a message was not answered is in no transcript. So it is written there, instead of sent.
    """

    account = "default"
    text_limit = TextLimit(size=1 << 40)
    repeats_dropped_for = math.inf
    shows_transcript = True
    max_file_bytes = 1 << 40

    def __init__(self, name: str, record: RecordNotice) -> None:
        self.name = name
        self._record = record

    async def run(self, deliver: Deliver) -> None:
        """Wait until cancelled: prompts come in through the routes of the API."""
        del deliver
        await asyncio.Event().wait()

    async def send(self, message: Outbound, *, key: str) -> Receipt:
        if message.kind is OutboundKind.NOTICE and message.is_failure and message.reply_to is not None:
            await self._record(message)
        return Receipt(message_id=key)

    async def send_file(self, message: Outbound, path: Path, *, key: str) -> Receipt:
        del message, path  # The transcript names the file, and a route of the API serves it.
        return Receipt(message_id=key)


class Delta(Struct, frozen=True):
    """The next piece of the text that the turn is writing."""

    text: str


class TurnFollower:
    """Follows the turn that answers one message, as a follower of its session (`SessionFeed.followed`).

    Register it before the message is accepted. What the reader has not taken yet is bounded by the size of the turn.
    """

    def __init__(self, message_id: str) -> None:
        self._message_id = message_id
        self.turn: str | None = None
        """The turn that answers the message. None until it has begun."""
        self._waiting: deque[Delta | Entry] = deque()
        self._pieces: list[str] = []
        """Text that came after everything in `_waiting`."""
        self._has_more = asyncio.Event()

    def on_entries(self, added: Sequence[Entry]) -> None:
        for entry in added:
            # The message may be answered together with others, in the turn of one of those.
            if isinstance(entry, entries.User) and entry.event_id == self._message_id:
                self.turn = entry.turn
            if self.turn is not None and entry.turn == self.turn:
                self._join_pieces()
                self._waiting.append(entry)
                self._has_more.set()

    def on_text(self, turn: str, delta: str) -> None:
        if turn == self.turn:
            self._pieces.append(delta)
            self._has_more.set()

    def on_removed(self) -> None:
        """Do nothing. The turn may still end, and the caller of `events` finds out if it does not."""

    async def events(self, check: float) -> AsyncGenerator[Delta | Entry | None, None]:
        """Yield what happens in the turn, up to and including its `TurnEnd`.

        None means that nothing has happened for `check` seconds. Then the caller finds out whether the turn will ever
        begin: a message that was dropped leaves nothing in the transcript.
        """
        while True:
            while self._waiting or self._pieces:
                if not self._waiting:
                    self._join_pieces()
                event = self._waiting.popleft()
                yield event
                if isinstance(event, entries.TurnEnd):
                    return
            self._has_more.clear()
            try:
                async with asyncio.timeout(check):
                    await self._has_more.wait()
            except TimeoutError:
                yield None

    def _join_pieces(self) -> None:
        if self._pieces:
            self._waiting.append(Delta("".join(self._pieces)))
            self._pieces.clear()
