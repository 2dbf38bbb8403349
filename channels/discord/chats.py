"""The chats that the bot is talked to in, and up to where each has been read: kept across restarts."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from time import monotonic

from channels.discord.wire import Place
from gateway.contract import Notebook

__all__ = ["Chat", "Chats"]

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
