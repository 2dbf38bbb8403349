"""The polling loop: has updates taken as they come, and acknowledges them only when the core has them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from collections.abc import Set as AbstractSet

from channels.telegram.albums import Arrived, growing
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
        self._ahead: set[int] = set()
        """What lies behind the offset and was taken all the same; it comes again, and is passed over."""
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
        try:
            await self._take(await self._with_whole_albums(arrived, taker, self._bot), taker, self._bot)
        except Transient:
            await self._acknowledge()
            raise
        if arrived:
            await self._breath.taken()

    async def _fetch(self, wait: int) -> list[Arrived]:
        arrived = await self._api.updates(self._offset, wait=wait, slack=max(LEAST_SLACK, self._longest // 5))
        if not arrived:
            # All before it is acknowledged by now. After a quiet week the next id may be lower: ask for any.
            self._offset = None
            self._ahead.clear()
        return [each for each in arrived if each[0] not in self._ahead]

    async def _with_whole_albums(self, arrived: list[Arrived], taker: Taker, bot: BotIdentity) -> list[Arrived]:
        """Where an album comes last in its chat, ask for it again until it stops growing. Nothing else waits for it."""
        seen: set[int] = set()
        while parts := growing(arrived, seen):
            await self._take([each for each in arrived if each[0] not in parts], taker, bot, spared=parts)
            await self._sleep(ALBUM_PAUSE)
            seen |= parts
            arrived = await self._fetch(wait=0)
        return arrived

    async def _take(
        self, arrived: Sequence[Arrived], taker: Taker, bot: BotIdentity, *, spared: AbstractSet[int] = frozenset()
    ) -> None:
        """Have all of it taken, and move the offset to the first that was not or was `spared`, if there is one."""
        left, trouble = await taker.take_all(arrived, bot)
        taken = self._ahead.union(number for number, _ in arrived) - left
        if taken or left or spared:
            self._offset = min(left | spared, default=max(taken, default=0) + 1)
            self._ahead = {number for number in taken if number > self._offset}
        if trouble is not None:
            raise trouble

    async def _acknowledge(self) -> None:
        """Acknowledge what was taken before the trouble, lest it come again after a restart."""
        if self._offset is not None:
            await self._api.acknowledge(self._offset)


def _asked(trouble: ChannelError) -> float | None:
    return trouble.retry_after if isinstance(trouble, Transient) else None
