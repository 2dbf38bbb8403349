"""Catches up on messages that were written while the bot was not connected.

The gateway repeats nothing to a new session. So the bot remembers how far it has read in each chat, across restarts,
and reads the rest from the chat's history.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from time import monotonic

import structlog

from channels.discord.api import HISTORY_PAGE, DiscordApi
from channels.discord.wire import DiscordChat, Json, first_snowflake
from gateway.contract import Notebook
from gateway.errors import Transient, Undeliverable

log = structlog.get_logger()

MAX_CHATS = 200
"""Chats whose read position is kept. The longest inactive ones are dropped first."""
SAVE_INTERVAL = 5.0
"""Seconds between two saves. After a crash, messages read since the last save are read again; the core drops them."""
MAX_PAGES = 10
"""Pages that are read per chat: the first one and the newest ones. Messages between them stay unanswered."""
MAX_AGE = timedelta(hours=47)
"""The core detects duplicates for two days. An older message might be answered twice."""
PARALLEL_READS = 8
MAX_BLOCKING, MAX_BLOCKING_DELAY = 30.0, 5.0
"""Seconds that all events wait for an unreadable history, to keep their order: in total, and per retry."""
RETRY_INTERVAL = 60.0
"""Seconds until a postponed chat is tried again."""

_KEY_PREFIX = "chat:"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPosition:
    """How far a chat has been read: up to and including the message with the id `message`."""

    chat: DiscordChat
    message: int


class ReadPositions:
    """The read position of each chat in which people talk to the bot. Call `load` first.

    A new chat is saved at once, a new position at intervals.
    """

    def __init__(self, notebook: Notebook, clock: Callable[[], float] = monotonic) -> None:
        self._notebook = notebook
        self._clock = clock
        self._positions: dict[str, ReadPosition] = {}
        self._unsaved: set[str] = set()
        self._saved_at = clock()
        self._frozen: set[str] = set()

    def __iter__(self) -> Iterator[ReadPosition]:
        return iter(list(self._positions.values()))

    def __contains__(self, channel: object) -> bool:
        return channel in self._positions

    def freeze(self, channels: Iterable[str]) -> None:
        """Keep the position in these chats, and only in these, even if later messages are handled."""
        self._frozen = set(channels)

    async def load(self) -> None:
        for key, value in (await self._notebook.read()).items():
            if key.startswith(_KEY_PREFIX):
                channel, saved = key.removeprefix(_KEY_PREFIX), json.loads(value)
                chat = DiscordChat(channel=channel, guild=saved["guild"], parent=saved["parent"])
                self._positions[channel] = ReadPosition(chat=chat, message=int(saved["read"]))

    async def advance(self, chat: DiscordChat, message: int, *, is_talked_to: bool) -> None:
        """Record that `message` has been handled. A new chat is added only if the bot `is_talked_to` in it."""
        known = self._positions.get(chat.channel)
        if (known is None and not is_talked_to) or chat.channel in self._frozen:
            return
        if known is None:
            self._positions[chat.channel] = ReadPosition(chat=chat, message=message)
        else:
            self._positions[chat.channel] = replace(known, message=max(message, known.message))
        self._unsaved.add(chat.channel)
        if known is None or self._clock() - self._saved_at > SAVE_INTERVAL:
            await self.save()

    async def save(self) -> None:
        """Write all changes to the notebook."""
        if not self._unsaved:
            return
        # Ids are ordered by time, so the lowest ones belong to the chats that were inactive the longest.
        by_activity = sorted(self._positions, key=lambda channel: self._positions[channel].message)
        for channel in by_activity[:-MAX_CHATS]:
            self._unsaved.add(channel)
            del self._positions[channel]
        facts: dict[str, str | None] = {}
        for channel in self._unsaved:
            known = self._positions.get(channel)
            fact = known and {"read": known.message, "guild": known.chat.guild, "parent": known.chat.parent}
            facts[f"{_KEY_PREFIX}{channel}"] = json.dumps(fact) if fact else None
        await self._notebook.write(facts)
        self._unsaved.clear()
        self._saved_at = self._clock()


@dataclass(frozen=True, slots=True, kw_only=True)
class MissedMessages:
    """All messages that were missed in a chat, or the error that kept them from being read."""

    position: ReadPosition
    messages: Sequence[Json] = ()
    error: Transient | None = None


class HistoryReader:
    """Reads missed messages. A chat whose history stays unreadable is postponed until `due_at`."""

    def __init__(
        self,
        api: DiscordApi,
        positions: ReadPositions,
        *,
        max_blocking: float = MAX_BLOCKING,
        retry_interval: float = RETRY_INTERVAL,
    ) -> None:
        self._api = api
        self._positions = positions
        self._max_blocking = max_blocking
        self._retry_interval = retry_interval
        self._blocking_until: float | None = None
        self.postponed: Sequence[ReadPosition] = ()
        """Includes chats that have no read position yet."""
        self.due_at: float | None = None
        """By the clock of the event loop; None while no chat is postponed."""

    @property
    def is_due(self) -> bool:
        return self.due_at is not None and self.due_at <= _now()

    async def read_missed(self, positions: Iterable[ReadPosition]) -> list[MissedMessages]:
        """Read what follows each position. Where that fails, the position is frozen until the next call."""
        limit = asyncio.Semaphore(PARALLEL_READS)
        async with asyncio.TaskGroup() as tasks:
            reads = [
                tasks.create_task(self._read_chat(position, limit), name=f"history:{position.chat.channel}")
                for position in positions
            ]
        found = [task.result() for task in reads]
        # A new message in such a chat would otherwise move the position past the missed ones.
        self._positions.freeze(each.position.chat.channel for each in found if each.error is not None)
        return found

    async def _read_chat(self, position: ReadPosition, limit: asyncio.Semaphore) -> MissedMessages:
        channel = int(position.chat.channel)
        after = max(position.message, first_snowflake(datetime.now(UTC) - MAX_AGE))
        try:
            async with limit:
                messages = await self._api.history(channel, after)
                if len(messages) < HISTORY_PAGE:
                    return MissedMessages(position=position, messages=messages)
                # There is more than a page: read backwards from the newest message, which still matters most.
                reached, before = int(messages[-1]["id"]), None
                later: list[Json] = []
                for _ in range(MAX_PAGES - 1):
                    page = await self._api.newest(channel, before)
                    later += [message for message in page if int(message["id"]) > reached]
                    if len(page) < HISTORY_PAGE or int(page[0]["id"]) <= reached:
                        break
                    before = int(page[0]["id"])
                else:
                    log.warning("catch_up_incomplete", chat=position.chat.channel, reason="too many missed messages")
                return MissedMessages(position=position, messages=messages + later)
        except Transient as error:
            return MissedMessages(position=position, error=error)
        except Undeliverable as refusal:  # The bot can no longer see the chat.
            log.info("catch_up_incomplete", chat=position.chat.channel, reason=str(refusal))
            return MissedMessages(position=position)

    def settle(self, found: Sequence[MissedMessages]) -> None:
        """Decide about chats that could not be read, once the messages of the others are handled.

        Raises the error if it may soon be over: a retry keeps the order of messages. Otherwise postpones the chats.
        """
        errors = [each.error for each in found if each.error is not None]
        if not errors:
            self._blocking_until, self.due_at, self.postponed = None, None, ()
            return
        error = max(errors, key=lambda error: error.retry_after or 0.0)
        delay = error.retry_after or 0.0
        self._blocking_until = self._blocking_until or _now() + self._max_blocking
        if _now() < self._blocking_until and delay <= MAX_BLOCKING_DELAY:
            raise error
        log.warning("catch_up_postponed", chats=len(errors), reason=str(error))
        self.postponed = [each.position for each in found if each.error is not None]
        self.due_at = _now() + max(delay, self._retry_interval)


def _now() -> float:
    return asyncio.get_running_loop().time()
