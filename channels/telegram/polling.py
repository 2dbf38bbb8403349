"""Long polling: fetches updates, and acknowledges them only after the core has them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet

from channels.telegram.api import BotApi, delay_after, retry_delays
from channels.telegram.payloads import ReceivedUpdate
from channels.telegram.updates import UpdateHandler, find_growing_albums
from gateway.contract import Pulse
from gateway.errors import AuthRejected, ChannelError, NotAccepted, Transient

MIN_SLACK = 2
"""Seconds that a response may be late at least, before the connection is treated as dead."""
ALBUM_PAUSE = 0.3
"""Seconds to wait for more parts of an album. Telegram responds as soon as it has the first."""


class Poller:
    """Polls Telegram. `max_wait` is the number of seconds for which Telegram may hold a request without updates.

    `confirm` is called before each request for updates. It raises `NotAccepted` while another node may make one.

    Telegram forgets all updates before the offset of a request. So the offset never moves past an update that the core
    has not accepted.
    """

    def __init__(
        self,
        api: BotApi,
        handler: UpdateHandler,
        pulse: Pulse,
        *,
        max_wait: int,
        confirm: Callable[[], None] = lambda: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._handler = handler
        self._pulse = pulse
        self._max_wait = max_wait
        self._confirm = confirm
        self._sleep = sleep
        self._wait = 0
        self._offset: int | None = None
        self._handled_ahead: set[int] = set()
        """Updates after the offset that were handled already. Telegram sends them again, and they are skipped."""

    async def run(self) -> None:
        """Poll until cancelled or until the token is rejected. After any other error, retry."""
        delays = retry_delays()
        while True:
            try:
                await self._poll()
            except AuthRejected:
                raise
            except NotAccepted as refusal:
                # Telegram is fine, and keeps the updates that the core could not take. Ask for them again.
                self._wait = 0
                await self._sleep(delay_after(refusal, delays))
            except ChannelError as error:
                self._wait = 0
                self._pulse.down(str(error))
                await self._sleep(delay_after(error, delays))
            else:
                # The first poll does not wait, so that it proves at once that messages can come in.
                self._wait = self._max_wait
                self._pulse.up()
                delays = retry_delays()
                # Lets the turns of these messages send their requests to the model first.
                await asyncio.sleep(0)

    async def _poll(self) -> None:
        await self._handler.identify()
        received = await self._fetch(self._wait)
        try:
            # Fetch an album again until it stops growing. Updates of other chats don't wait for it.
            seen: set[int] = set()
            while parts := find_growing_albums(received, seen):
                await self._handle([each for each in received if each.id not in parts], held_back=parts)
                await self._sleep(ALBUM_PAUSE)
                seen |= parts
                received = await self._fetch(wait=0)
            await self._handle(received)
        except Transient:
            # The next poll may be far away, or not come at all before a restart. Acknowledge the handled updates,
            # so that Telegram does not send them again.
            if self._offset is not None:
                self._confirm()
                await self._api.acknowledge(self._offset)
            raise

    async def _fetch(self, wait: int) -> list[ReceivedUpdate]:
        slack = max(MIN_SLACK, self._max_wait // 5)
        self._confirm()
        received = await self._api.get_updates(self._offset, wait=wait, slack=slack)
        if not received:
            # Everything before the offset is acknowledged now. After a week without updates Telegram may continue with
            # a lower id, which a request with this offset would skip. So the next request has no offset.
            self._offset = None
            self._handled_ahead.clear()
        return [each for each in received if each.id not in self._handled_ahead]

    async def _handle(self, received: Sequence[ReceivedUpdate], *, held_back: AbstractSet[int] = frozenset()) -> None:
        """Handle `received`, and move the offset to the first update that was not handled or is `held_back`."""
        left, error = await self._handler.handle_all(received)
        handled = self._handled_ahead.union(each.id for each in received) - left
        if handled or left or held_back:
            self._offset = min(left | held_back, default=max(handled, default=0) + 1)
            self._handled_ahead = {update_id for update_id in handled if update_id > self._offset}
        if error is not None:
            raise error
