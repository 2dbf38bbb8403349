"""The polling loop: has updates taken as they come, and acknowledges them only when the core has them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from channels.telegram.albums import Arrived, album_at_end
from channels.telegram.api import BotApi
from channels.telegram.breath import Breath
from channels.telegram.pauses import pauses
from channels.telegram.taking import Taker
from channels.telegram.wire import BotIdentity
from gateway.contract import Pulse
from gateway.errors import AuthRejected, ChannelError, Transient

__all__ = ["Poller"]

LEAST_SLACK = 2
"""How many seconds later than agreed an answer may come at least; after that the connection is taken for dead."""
ALBUM_PAUSE = 0.3
"""The parts of an album are sent in one go, but Telegram answers as soon as it has the first."""


class Poller:
    """Telegram forgets what lies before the offset that it is asked for, so that one moves only behind what is taken.

    `identify` is asked again until it succeeds: Telegram may be away when we start. `longest` is for how many seconds
    it may hold back an empty answer.
    """

    def __init__(
        self,
        api: BotApi,
        identify: Callable[[], Awaitable[BotIdentity]],
        pulse: Pulse,
        *,
        longest: int,
        breath: Breath,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._identify = identify
        self._pulse = pulse
        self._longest = longest
        self._breath = breath
        self._sleep = sleep
        self._bot: BotIdentity | None = None
        self._offset: int | None = None
        self._wait = 0

    async def run(self, taker: Taker) -> None:
        """Poll until cancelled or until the token is refused; any other trouble ends in another try."""
        waits = pauses()
        while True:
            try:
                await self._round(taker)
            except AuthRejected:
                raise
            except ChannelError as trouble:
                self._wait = 0
                self._pulse.down(str(trouble))
                await self._sleep(_asked(trouble) or next(waits))
            else:
                # Only the first answer is wanted at once, as a proof that messages can come in.
                self._wait = self._longest
                self._pulse.up()
                waits = pauses()

    async def _round(self, taker: Taker) -> None:
        self._bot = self._bot or await self._identify()
        arrived = await self._fetch(self._wait)
        if not arrived:
            # All before it is acknowledged by now. After a quiet week the next id may be lower: ask for any.
            self._offset = None
        try:
            await self._take(await self._with_whole_album(arrived, taker, self._bot), taker, self._bot)
        except Transient:
            await self._acknowledge()
            raise
        if arrived:
            await self._breath.taken()

    async def _fetch(self, wait: int) -> list[Arrived]:
        return await self._api.updates(self._offset, wait=wait, slack=max(LEAST_SLACK, self._longest // 5))

    async def _with_whole_album(self, arrived: list[Arrived], taker: Taker, bot: BotIdentity) -> list[Arrived]:
        """When an album comes last, ask for it again until no more of it comes. What stands before it does not wait."""
        while album := album_at_end(arrived):
            await self._take(arrived[: -len(album)], taker, bot)
            await self._sleep(ALBUM_PAUSE)
            arrived = await self._fetch(wait=0)
            if len(arrived) <= len(album):
                break
        return arrived

    async def _take(self, arrived: Sequence[Arrived], taker: Taker, bot: BotIdentity) -> None:
        """Have all of it taken, and move the offset to the first that was not, if there is one."""
        if not arrived:
            return
        left, trouble = await taker.take_all(arrived, bot)
        self._offset = min(left, default=arrived[-1][0] + 1)
        if trouble is not None:
            raise trouble

    async def _acknowledge(self) -> None:
        """Acknowledge what was taken before the trouble, lest it come again after a restart."""
        if self._offset is not None:
            await self._api.acknowledge(self._offset)


def _asked(trouble: ChannelError) -> float | None:
    return trouble.retry_after if isinstance(trouble, Transient) else None
