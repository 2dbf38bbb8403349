"""Waiting reactions: an emoji on a message that has to wait, until its turn starts. No other part depends on them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog
from msgspec import Struct

from gateway.contract import Channel, Inbound, Reacts
from gateway.contract.abilities import abilities_of
from gateway.errors import ChannelError, Transient, Undeliverable
from gateway.lanes import LaneFull, Lanes

log = structlog.get_logger()

SEEN = "👀"
SHOW_AFTER = 0.5
"""Seconds that a message has to wait before it gets a reaction."""
REQUEST_TIMEOUT = 10.0
MAX_WAITING_PER_CHAT = 3
"""Requests that wait in one chat. More are dropped: a reaction that comes late is worth nothing."""
MAX_REACTIONS = 500
RETRY_DELAYS = (1.0, 5.0, 30.0)
"""Seconds between attempts to remove a reaction, unless the platform asks for more."""


class _Reaction(Struct):
    inbound: Inbound
    timer: asyncio.TimerHandle | None = None
    is_shown: bool = False
    is_over: bool = False

    @property
    def chat(self) -> str:
        address = self.inbound.address
        return f"{address.channel}:{address.account}:{address.peer}"


class WaitingReactions:
    def __init__(
        self,
        channels: Mapping[tuple[str, str], Channel],
        *,
        show_after: float = SHOW_AFTER,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._channels = channels
        self._show_after = show_after
        self._sleep = sleep
        self.waiting: dict[str, _Reaction] = {}
        """By the turn of the message."""
        self.lanes: Lanes[_Reaction] = Lanes(
            self._update, name="reaction", max_waiting=MAX_WAITING_PER_CHAT, max_total=MAX_REACTIONS
        )

    def add(self, turn: str, inbound: Inbound) -> None:
        """Show, if the channel can, that a message waits. Nothing is shown if the wait is short."""
        if not self._can_react(inbound):
            return
        reaction = self.waiting[turn] = _Reaction(inbound)

        def show() -> None:
            try:
                self.lanes.check_room(reaction.chat)
            except LaneFull:
                self.waiting.pop(turn, None)
            else:
                self.lanes.put(reaction.chat, reaction)

        reaction.timer = asyncio.get_running_loop().call_later(self._show_after, show)

    def restore(self, turn: str, inbound: Inbound) -> None:
        """Track a message that waited when the daemon stopped: it may have a reaction to be removed."""
        if self._can_react(inbound):
            self.waiting[turn] = _Reaction(inbound, is_shown=True)

    def remove(self, turn: str) -> None:
        """Remove the reaction, if there is one: the turn of the message starts, or never will."""
        reaction = self.waiting.pop(turn, None)
        if reaction is None:
            return
        reaction.is_over = True
        if reaction.timer is not None:
            reaction.timer.cancel()
        if reaction.is_shown:
            self.lanes.put(reaction.chat, reaction)

    def _can_react(self, inbound: Inbound) -> bool:
        is_possible = inbound.message_id is not None and self._channel_for(inbound) is not None
        return is_possible and len(self.waiting) < MAX_REACTIONS

    async def _update(self, reaction: _Reaction) -> None:
        """Show a reaction, or remove it. One that was over before it was shown costs no request."""
        if not reaction.is_over:
            error = await self._request(reaction, is_on=True)
            reaction.is_shown = error is None or (isinstance(error, Transient) and error.may_have_arrived)
        # `remove` may have been called during the request above. It put nothing in the lane then, as the reaction
        # was not shown yet, so it is removed here.
        if not (reaction.is_over and reaction.is_shown):
            return
        reaction.is_shown = False
        # Retried, since a reaction that stays would say for ever that the message waits.
        error = await self._request(reaction, is_on=False)
        for delay in RETRY_DELAYS:
            if not isinstance(error, Transient):
                return
            await self._sleep(max(delay, error.retry_after or 0.0))
            error = await self._request(reaction, is_on=False)

    async def _request(self, reaction: _Reaction, *, is_on: bool) -> Exception | None:
        """Return the error, if there was one."""
        inbound, channel = reaction.inbound, self._channel_for(reaction.inbound)
        if channel is None:
            return Undeliverable("The channel is not enabled any more.")
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                await (channel.react if is_on else channel.unreact)(inbound.address, inbound.message_id or "", SEEN)
        except (ChannelError, TimeoutError) as error:
            log.debug("reaction_failed", channel=inbound.address.channel, reason=str(error))
            is_late = isinstance(error, TimeoutError)
            return Transient("The request timed out.", may_have_arrived=True) if is_late else error
        except Exception as bug:  # One channel's bug must not end the daemon.
            log.exception("reaction_crashed", channel=inbound.address.channel)
            return bug
        return None

    def _channel_for(self, inbound: Inbound) -> Reacts | None:
        channel = self._channels.get((inbound.address.channel, inbound.address.account))
        return None if channel is None else abilities_of(channel).reacts
