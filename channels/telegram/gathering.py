"""Gathering: by webhook, each part of an album comes only once the one before it has been acknowledged.

That is how Telegram's server treats the updates of one chat:
https://github.com/tdlib/telegram-bot-api/blob/master/telegram-bot-api/WebhookActor.cpp. So a part is kept in the
notebook, acknowledged, and handed over with the others when no more of them come, or after a restart.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from channels.telegram.albums import Album, Arrived, album_of, chat_of
from channels.telegram.pauses import pauses
from gateway.contract import Notebook
from gateway.errors import ChannelError, Transient

__all__ = ["Gathering", "gathering"]

QUIET = 1.0
"""Seconds without another part after which an album is whole."""
MOST = 10
"""Parts of an album: https://core.telegram.org/bots/api#sendmediagroup."""
MAX_ALBUMS = 100
"""How many are remembered; while so many are being gathered, the parts of another are messages of their own."""

_PART = "part:"
_TAKEN = "album:"


@dataclass(slots=True)
class _Held:
    parts: dict[int, Arrived] = field(default_factory=dict)
    is_taken: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Gathering:
    """Takes updates as they come. What comes into a chat behind an album is taken after it."""

    def __init__(
        self,
        *,
        read: Callable[[object], Arrived | None],
        take: Callable[[Sequence[Arrived]], Awaitable[None]],
        notebook: Notebook,
        tasks: asyncio.TaskGroup,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._read = read
        self._take = take
        self._notebook = notebook
        self._tasks = tasks
        self._sleep = sleep
        self._albums: dict[Album, _Held] = {}
        self._waiting: set[asyncio.Task[None]] = set()

    async def resume(self) -> None:
        """Go on with what was kept before a restart."""
        facts = await self._notebook.read()
        for name, numbers in sorted(facts.items(), key=lambda fact: (len(fact[1]), fact[1])):
            if name.startswith(_TAKEN):
                self._albums[_album(name)] = _Held(parts=_taken(numbers), is_taken=True)
        for name, raw in facts.items():
            arrived = self._read(json.loads(raw)) if name.startswith(_PART) else None
            if arrived is not None and (album := album_of(arrived)) is not None:
                self._add(album, self._albums.setdefault(album, _Held()), arrived)

    async def receive(self, raw: object) -> None:
        """Return once an update is durable, taken or kept; `Transient` where it is neither."""
        arrived = self._read(raw)
        if arrived is None:
            return
        album = album_of(arrived)
        for other in [each for each in self._gathered() if each[0] == chat_of(arrived) and each != album]:
            await self._hand_over(other)
        if album is None or not await self._keep(album, raw, arrived):
            await self._take([arrived])

    def stop(self) -> None:
        """Leave to the next start what is not whole yet."""
        for task in self._waiting:
            task.cancel()

    def _gathered(self) -> list[Album]:
        return [album for album, held in self._albums.items() if not held.is_taken]

    async def _keep(self, album: Album, raw: object, arrived: Arrived) -> bool:
        """Keep a part; False where it has to be taken alone: there is no room, or its album was taken without it."""
        if album not in self._albums and len(self._gathered()) >= MAX_ALBUMS:
            return False
        held = self._albums.setdefault(album, _Held())
        number, _ = arrived
        async with held.lock:
            if held.is_taken:
                return number in held.parts
            try:
                await self._notebook.write({f"{_PART}{number}": json.dumps(raw)})
            except Transient:
                if not held.parts:
                    self._albums.pop(album, None)
                raise
            self._albums[album] = held
            self._add(album, held, arrived)
        if len(held.parts) >= MOST:
            await self._hand_over(album)
        return True

    def _add(self, album: Album, held: _Held, arrived: Arrived) -> None:
        if held.is_taken:
            return
        held.parts[arrived[0]] = arrived
        if len(held.parts) == 1:
            task = self._tasks.create_task(self._wait(album, held), name=f"telegram:album:{album[1]}")
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    async def _wait(self, album: Album, held: _Held) -> None:
        """Hand an album over when it has stopped growing; where that cannot be, later."""
        size = 0
        while len(held.parts) > size:
            size = len(held.parts)
            await self._sleep(QUIET)
        waits = pauses()
        while not held.is_taken:
            try:
                await self._hand_over(album)
            except ChannelError as trouble:
                asked = trouble.retry_after if isinstance(trouble, Transient) else None
                await self._sleep(asked or next(waits))

    async def _hand_over(self, album: Album) -> None:
        """Have an album taken as one. After a crash in between it is taken again, which the core notices."""
        held = self._albums[album]
        async with held.lock:
            if held.is_taken or not held.parts:
                return
            numbers = sorted(held.parts)
            await self._take([held.parts[number] for number in numbers])
            held.is_taken = True
            held.parts = {number: (number, None) for number in numbers}
        parts = {f"{_PART}{number}": None for number in numbers}
        await self._notebook.write({**parts, _name(album): " ".join(map(str, numbers)), **self._forgotten()})

    def _forgotten(self) -> dict[str, None]:
        """Forget the oldest of the albums that were taken."""
        taken = [album for album, held in self._albums.items() if held.is_taken]
        for album in taken[:-MAX_ALBUMS]:
            del self._albums[album]
        return {_name(album): None for album in taken[:-MAX_ALBUMS]}


def _name(album: Album) -> str:
    return f"{_TAKEN}{album[0]}:{album[1]}"


def _album(name: str) -> Album:
    chat, _, group = name.removeprefix(_TAKEN).partition(":")
    return int(chat), group


def _taken(numbers: str) -> dict[int, Arrived]:
    return {int(number): (int(number), None) for number in numbers.split()}


@asynccontextmanager
async def gathering(
    *,
    read: Callable[[object], Arrived | None],
    take: Callable[[Sequence[Arrived]], Awaitable[None]],
    notebook: Notebook,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[Gathering]:
    """Gather while inside, first what is left from before; what is not whole at the end stays in the notebook."""
    failure: Exception | None = None
    async with asyncio.TaskGroup() as tasks:
        albums = Gathering(read=read, take=take, notebook=notebook, tasks=tasks, sleep=sleep)
        try:
            await albums.resume()
            yield albums
        except Exception as error:  # noqa: BLE001 - raised below, outside of the group, which would wrap it
            failure = error
        finally:
            albums.stop()
    if failure is not None:
        raise failure
