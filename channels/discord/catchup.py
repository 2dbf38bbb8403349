"""What was written in the known chats while nobody listened, as their histories tell it."""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from time import monotonic

import structlog

from channels.discord.api import PAGE, Api
from channels.discord.gateway_connection import Frame
from channels.discord.wire import Place, first_id
from gateway.contract import Notebook
from gateway.errors import Transient, Undeliverable

log = structlog.get_logger()

AT_MOST = 200
"""Chats that are remembered; those that were quiet the longest are forgotten first."""
WRITTEN_EVERY = 5.0
"""Seconds between two notes of how far was read. What was read meanwhile comes again after a crash, to no effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    place: Place
    read: int
    """The id of the last message that was taken or passed over."""


class Chats:
    """Open with `load`. A chat is written down as soon as it is known; how far it was read, now and then."""

    def __init__(self, notebook: Notebook, clock: Callable[[], float] = monotonic) -> None:
        self._notebook = notebook
        self._clock = clock
        self._chats: dict[str, Chat] = {}
        self._changed: set[str] = set()
        self._written = clock()
        self._held: set[str] = set()

    def __iter__(self) -> Iterator[Chat]:
        return iter(list(self._chats.values()))

    def __contains__(self, channel: object) -> bool:
        return channel in self._chats

    def hold(self, channels: Iterable[str]) -> None:
        """Keep the place in these chats and in no others, whatever else is taken: more is to be read behind it."""
        self._held = set(channels)

    async def load(self) -> None:
        for name, value in (await self._notebook.read()).items():
            if name.startswith(_PREFIX):
                self._chats[name.removeprefix(_PREFIX)] = _decoded(name.removeprefix(_PREFIX), value)

    async def advance(self, place: Place, message: int, *, is_talked_to: bool) -> None:
        """Note that `message` has been dealt with. Only where the bot is talked to a chat is worth remembering."""
        known = self._chats.get(place.channel)
        if (known is None and not is_talked_to) or place.channel in self._held:
            return
        read = max(message, known.read if known else 0)
        self._chats[place.channel] = replace(known, read=read) if known else Chat(place=place, read=read)
        self._changed.add(place.channel)
        if known is None or self._clock() - self._written > WRITTEN_EVERY:
            await self.save()

    async def save(self) -> None:
        """Write down what has changed."""
        if not self._changed:
            return
        for quiet in sorted(self._chats, key=lambda channel: self._chats[channel].read)[: -AT_MOST or None]:
            self._changed.add(quiet)
            del self._chats[quiet]
        facts = {f"{_PREFIX}{channel}": self._encoded(channel) for channel in self._changed}
        await self._notebook.write(facts)
        self._changed.clear()
        self._written = self._clock()

    def _encoded(self, channel: str) -> str | None:
        chat = self._chats.get(channel)
        if chat is None:
            return None
        return json.dumps({"read": chat.read, "guild": chat.place.guild, "parent": chat.place.parent})


_PREFIX = "chat:"


def _decoded(channel: str, value: str) -> Chat:
    known = json.loads(value)
    return Chat(place=Place(channel=channel, guild=known["guild"], parent=known["parent"]), read=int(known["read"]))


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
