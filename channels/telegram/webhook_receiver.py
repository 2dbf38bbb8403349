"""The receiving side of the webhook: registers it with Telegram, and collects the parts of albums.

By webhook, Telegram sends the next update of a chat only after the one before was acknowledged:
https://github.com/tdlib/telegram-bot-api/blob/master/telegram-bot-api/WebhookActor.cpp. So each part of an album has
to be acknowledged before the next one comes. Each part is saved in the notebook, and the album is delivered once no
more parts come, or after a restart.

In a cluster, the owner of a chat receives its updates, so that the parts of an album meet. If the owner dies, the other
nodes deliver the parts that it has saved.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import time

import structlog

from channels.telegram.api import BotApi, delay_after, retry_delays
from channels.telegram.payloads import AlbumKey, ReceivedUpdate, parse_update
from channels.telegram.updates import UpdateHandler
from config import Secret
from gateway.contract import Notebook, Pulse
from gateway.errors import AuthRejected, ChannelError, Transient

log = structlog.get_logger()

ALBUM_QUIET_TIME = 1.0
"""Seconds without another part after which an album is complete."""
MAX_ALBUM_PARTS = 10
"""https://core.telegram.org/bots/api#sendmediagroup"""
MAX_ALBUMS = 100
"""Albums that are collected at the same time. Beyond that, each part is delivered as its own message.

Also the number of delivered albums that are remembered."""

ABANDONED_AFTER = 10.0
"""Seconds that a saved part stays with the node of a cluster that has saved it. Longer than an album takes."""

CHECK_INTERVAL = 45.0
"""Seconds between two checks of the webhook."""
DELETE_TIMEOUT = 5.0

# Notebook keys: "part:<update id>" has the JSON of an undelivered part, "album:<chat>:<media group>" the update ids of
# a delivered album.
_PART_KEY = "part:"
_ALBUM_KEY = "album:"


@dataclass(slots=True)
class _Album:
    parts: dict[int, ReceivedUpdate] = field(default_factory=dict)
    delivered_ids: frozenset[int] = frozenset()
    """Empty until the album is delivered."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class WebhookAlbums:
    """Receives updates, and collects the parts of albums. Waits in background tasks of `handler`."""

    def __init__(
        self,
        handler: UpdateHandler,
        notebook: Notebook,
        *,
        is_in_cluster: bool = False,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._handler = handler
        self._notebook = notebook
        self._is_in_cluster = is_in_cluster
        self._sleep = sleep
        self._albums: dict[AlbumKey, _Album] = {}

    async def resume(self) -> None:
        """Load the albums of the last run, and go on with those that were not delivered."""
        facts = await self._notebook.read()
        self._learn_delivered(facts)
        for key, parts in _saved_albums(facts).items():
            album = self._albums.setdefault(key, _Album())
            if not album.delivered_ids:
                for part in parts.values():
                    self._add(key, album, part)

    def _learn_delivered(self, facts: Mapping[str, str]) -> None:
        # Oldest first, because `_deliver` forgets the first ones. Update ids grow, so lists of them sort like numbers.
        for name, ids in sorted(facts.items(), key=lambda fact: (len(fact[1]), fact[1])):
            if name.startswith(_ALBUM_KEY):
                chat, _, media_group = name.removeprefix(_ALBUM_KEY).partition(":")
                delivered = _Album(delivered_ids=frozenset(map(int, ids.split())))
                self._albums.setdefault((int(chat), media_group), delivered)

    async def deliver_abandoned(self) -> None:
        """Deliver the saved parts of nodes that have died. Runs until cancelled.

        All nodes do this, and may do it for the same album. The core accepts it once.
        """
        before: dict[AlbumKey, dict[int, ReceivedUpdate]] = {}
        while True:
            await self._sleep(ABANDONED_AFTER)
            try:
                facts = await self._notebook.read()
                self._learn_delivered(facts)
                saved = _saved_albums(facts)
                for key, parts in saved.items():
                    if key not in self._albums and before.get(key, {}).keys() == parts.keys():
                        await self._deliver_abandoned(key, _Album(parts=parts))
            except ChannelError as error:  # They are still there next time.
                log.debug("albums_not_delivered", reason=str(error))
            else:
                before = saved

    async def _deliver_abandoned(self, key: AlbumKey, album: _Album) -> None:
        self._albums[key] = album
        try:
            await self._deliver(key, album)
        finally:
            if not album.delivered_ids:
                del self._albums[key]

    async def receive(self, raw: str) -> None:
        """Return once an update is delivered or saved. Raises `Transient` if neither is possible now.

        In a cluster, raises `HeldElsewhere` if another node owns the chat.
        """
        received = parse_update(raw)
        if received is None:
            # Telegram would repeat it for ever, and hold back the updates after it.
            log.warning("updates_without_id_skipped", count=1)
            return
        if self._is_in_cluster:
            await self._handler.require_here(received)
        key = received.album
        # Any other update in the chat ends its open album. Deliver the album first, to keep the order.
        ended = [(other, album) for other, album in self._open_albums() if other[0] == received.chat and other != key]
        for other, album in ended:
            await self._deliver(other, album)
        if key is None or not await self._save(key, raw, received):
            await self._handler.handle([received])

    def _open_albums(self) -> list[tuple[AlbumKey, _Album]]:
        return [(key, album) for key, album in self._albums.items() if not album.delivered_ids]

    async def _save(self, key: AlbumKey, raw: str, received: ReceivedUpdate) -> bool:
        """Save a part of an album. Returns False if the part has to be delivered alone."""
        if self._is_in_cluster and key not in self._albums:  # The last owner of the chat may have delivered it.
            self._learn_delivered(await self._notebook.read())
        if key not in self._albums and len(self._open_albums()) >= MAX_ALBUMS:
            return False
        album = self._albums.setdefault(key, _Album())
        # The lock keeps a part from being added while the album is delivered:
        # 1. `_deliver` passes the parts it has to the core.
        # 2. A further part is saved and acknowledged.
        # 3. `_deliver` marks the album as delivered. The further part would be lost.
        async with album.lock:
            if album.delivered_ids:
                # Either a part that Telegram sends again, or one that came too late for its album.
                return received.id in album.delivered_ids
            try:
                await self._notebook.write({f"{_PART_KEY}{received.id}": raw})
            except Transient:
                if not album.parts:
                    self._albums.pop(key, None)
                raise
            # If this call had to wait for the lock, another part's failed write may have removed the album.
            self._albums[key] = album
            self._add(key, album, received)
        if len(album.parts) >= MAX_ALBUM_PARTS:
            await self._deliver(key, album)
        return True

    def _add(self, key: AlbumKey, album: _Album, received: ReceivedUpdate) -> None:
        album.parts[received.id] = received
        if len(album.parts) == 1:
            self._handler.run_in_background(self._deliver_when_complete(key, album), name=f"telegram:album:{key[1]}")

    async def _deliver_when_complete(self, key: AlbumKey, album: _Album) -> None:
        """Deliver an album once it has stopped growing. Retries until the core accepts it."""
        size = 0
        while len(album.parts) > size:
            size = len(album.parts)
            await self._sleep(ALBUM_QUIET_TIME)
        delays = retry_delays()
        while not album.delivered_ids:
            try:
                await self._deliver(key, album)
            except ChannelError as error:
                await self._sleep(delay_after(error, delays))

    async def _deliver(self, key: AlbumKey, album: _Album) -> None:
        """Deliver an album as one message, unless it is delivered already."""
        async with album.lock:
            if album.delivered_ids or not album.parts:
                return
            ids = sorted(album.parts)
            await self._handler.handle([album.parts[update_id] for update_id in ids])
            album.delivered_ids = frozenset(ids)
            album.parts.clear()
        # After a crash at this point the album is delivered a second time. The core drops it as a duplicate.
        delivered = [other for other, each in self._albums.items() if each.delivered_ids]
        forgotten = delivered[:-MAX_ALBUMS]
        for other in forgotten:
            del self._albums[other]
        await self._notebook.write(
            {
                **{f"{_PART_KEY}{update_id}": None for update_id in ids},
                _album_name(key): " ".join(map(str, ids)),
                **{_album_name(other): None for other in forgotten},
            }
        )


def _saved_albums(facts: Mapping[str, str]) -> dict[AlbumKey, dict[int, ReceivedUpdate]]:
    """Return the saved parts of each album, by their update ids."""
    albums: dict[AlbumKey, dict[int, ReceivedUpdate]] = {}
    for name, raw in facts.items():
        received = parse_update(raw) if name.startswith(_PART_KEY) else None
        if received is not None and received.album is not None:
            albums.setdefault(received.album, {})[received.id] = received
    return albums


def _album_name(key: AlbumKey) -> str:
    return f"{_ALBUM_KEY}{key[0]}:{key[1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRegistration:
    """Keeps the webhook registered, and reports whether Telegram can reach it.

    One that is shared by the nodes of a cluster stays when a node stops.
    """

    api: BotApi
    pulse: Pulse
    url: str
    secret: Secret
    is_shared: bool = False
    clock: Callable[[], float] = time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def run(self) -> None:
        """Keep the webhook registered until cancelled or until the token is rejected."""
        try:
            await self._keep_registered()
        except AuthRejected:
            raise
        except BaseException:  # Including a cancellation, which is how a channel is stopped.
            # Without a webhook, Telegram keeps new updates until the next start. With one, it would call in vain.
            if not self.is_shared:
                with suppress(ChannelError, TimeoutError):
                    async with asyncio.timeout(DELETE_TIMEOUT):
                        await self.api.delete_webhook()
            raise

    async def _keep_registered(self) -> None:
        delays = retry_delays()
        is_set = False
        while True:
            try:
                if not is_set:
                    await self.api.set_webhook(self.url, self.secret)
                    is_set = True
                info = await self.api.get_webhook_info()
            except AuthRejected:
                raise
            except ChannelError as error:
                self.pulse.down(str(error))
                await self.sleep(delay_after(error, delays))
                continue
            delays = retry_delays()

            # Telegram remembers its last failed call. It matters only if it is recent and updates are still waiting.
            failed_at = info.last_error_date
            is_failing = failed_at is not None and self.clock() - failed_at < 2 * CHECK_INTERVAL
            if info.url != self.url:
                self.pulse.down(
                    "Another program has set its own webhook for this bot. "
                    "Stop it, or use a separate bot for each program."
                )
                is_set = False
            elif is_failing and info.pending_update_count:
                self.pulse.down(f"Telegram can't deliver to {self.url}: {info.last_error_message or ''}")
                is_set = False
            else:
                self.pulse.up()
            await self.sleep(CHECK_INTERVAL)
