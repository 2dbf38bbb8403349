"""What was written in the known chats while nobody listened, as their histories tell it."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog

from channels.discord.api import PAGE, Api
from channels.discord.chats import Chat, Chats
from channels.discord.client import Frame
from channels.discord.wire import first_id
from gateway.errors import Transient, Undeliverable

__all__ = ["Backlog", "Missed"]

log = structlog.get_logger()

PAGES = 10
"""How much of one chat is caught up on: its first page and its last ones; what is between stays unanswered."""
OLDEST = timedelta(hours=47)
"""The core knows for two days what it has taken. What is older might be answered twice."""
AT_ONCE = 8
PATIENCE, LONGEST_WAIT = 30.0, 5.0
"""Seconds for which everybody waits for a history that cannot be read, and how many at a time, for the order's sake."""
AGAIN = 60.0
"""Seconds after which a chat that is still behind is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """Either what was missed in a chat, all of it, or why that cannot be told now."""

    chat: Chat
    messages: Sequence[Frame] = ()
    trouble: Transient | None = None


class Backlog:
    """Reads histories. A chat whose history cannot be read for long is left behind, and read when that `is_due`."""

    def __init__(self, api: Api, chats: Chats, *, patience: float = PATIENCE, again: float = AGAIN) -> None:
        self._api = api
        self._chats = chats
        self._patience = patience
        self._again = again
        self._patient_until: float | None = None
        self.behind: Sequence[Chat] = ()
        """The chats that were left behind, also those that nobody has talked to us in before."""
        self.due_at: float | None = None
        """By the clock of the event loop; None while no chat is behind."""

    @property
    def is_due(self) -> bool:
        return self.due_at is not None and self.due_at <= _now()

    async def missed(self, chats: Iterable[Chat]) -> list[Missed]:
        """Read all of these; where that fails, the place is kept until it is tried again."""
        limit = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as tasks:
            reading = [
                tasks.create_task(_missed(self._api, chat, limit), name=f"history:{chat.place.channel}")
                for chat in chats
            ]
        found = [task.result() for task in reading]
        self._chats.hold(each.chat.place.channel for each in found if each.trouble is not None)
        return found

    def settle(self, found: Sequence[Missed]) -> None:
        """Raise why something could not be read, if that may soon be over; later it holds up nobody any more."""
        troubles = [each.trouble for each in found if each.trouble is not None]
        if not troubles:
            self._patient_until, self.due_at, self.behind = None, None, ()
            return
        trouble = max(troubles, key=lambda trouble: trouble.retry_after or 0.0)
        pause = trouble.retry_after or 0.0
        self._patient_until = self._patient_until or _now() + self._patience
        if _now() < self._patient_until and pause <= LONGEST_WAIT:
            raise trouble
        log.warning("chats_behind", chats=len(troubles), reason=str(trouble))
        self.behind = [each.chat for each in found if each.trouble is not None]
        self.due_at = _now() + max(pause, self._again)


async def _missed(api: Api, chat: Chat, limit: asyncio.Semaphore) -> Missed:
    """Read the history of a chat; nothing was missed where it cannot be seen any more."""
    async with limit:
        try:
            return Missed(chat=chat, messages=await _since(api, chat))
        except Transient as trouble:
            return Missed(chat=chat, trouble=trouble)
        except Undeliverable as refusal:
            log.info("chat_not_caught_up", chat=chat.place.channel, reason=str(refusal))
            return Missed(chat=chat)


async def _since(api: Api, chat: Chat) -> list[Frame]:
    """Return what was written since the chat was read; of too much the newest, which still matters."""
    channel = int(chat.place.channel)
    first = await api.history(channel, max(chat.read, first_id(datetime.now(UTC) - OLDEST)))
    if len(first) < PAGE:
        return first
    later: list[Frame] = []
    reached, before = int(first[-1]["id"]), None
    for _ in range(PAGES - 1):
        page = await api.newest(channel, before)
        later += [message for message in page if int(message["id"]) > reached]
        if len(page) < PAGE or int(page[0]["id"]) <= reached:
            return first + later
        before = int(page[0]["id"])
    log.warning("chat_not_caught_up", chat=chat.place.channel, reason="too much was written meanwhile")
    return first + later


def _now() -> float:
    return asyncio.get_running_loop().time()
