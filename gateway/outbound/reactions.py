"""Signs: a reaction on a message that has to wait, until it does no more. Nothing depends on it, and nobody waits."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import structlog

from gateway.contract import Channel, Inbound, Reacts
from gateway.contract.abilities import abilities_of
from gateway.errors import ChannelError, Transient, Undeliverable
from gateway.lanes import LaneFull, Lanes

__all__ = ["SEEN", "WaitingReactions"]

log = structlog.get_logger()

SEEN = "👀"
SOON = 0.5
"""Seconds within which a message is not called waiting."""
DEADLINE = 10.0
MAX_WAITING = 3
"""Signs that wait in one chat; one that comes too late says nothing any more, so more are dropped."""
MAX_IN_ALL = 500
AGAIN_AFTER = (1.0, 5.0, 30.0)
"""Seconds after which a sign is taken off that could not be before, unless the platform has asked for more."""


@dataclass(slots=True)
class _Sign:
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
        soon: float = SOON,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._channels = channels
        self._soon = soon
        self._sleep = sleep
        self._signs: dict[str, _Sign] = {}
        self.lanes: Lanes[_Sign] = Lanes(self._work, name="sign", max_waiting=MAX_WAITING, max_total=MAX_IN_ALL)

    def waits(self, turn: str, inbound: Inbound) -> None:
        """Show that a message was seen and waits, where the channel can, unless that is over in a moment."""
        if inbound.message_id is None or self._reacts(inbound) is None or len(self._signs) >= MAX_IN_ALL:
            return
        sign = self._signs[turn] = _Sign(inbound)
        sign.timer = asyncio.get_running_loop().call_later(self._soon, self._show_soon, turn, sign)

    def may_stand(self, turn: str, inbound: Inbound) -> None:
        """Know of a message that waited when the daemon ended: its sign, if it had one, is taken off in the end."""
        if inbound.message_id is not None and self._reacts(inbound) is not None and len(self._signs) < MAX_IN_ALL:
            self._signs[turn] = _Sign(inbound, is_shown=True)

    def over(self, turn: str) -> None:
        """Take the sign off: the message is being answered, or never will be."""
        sign = self._signs.pop(turn, None)
        if sign is None:
            return
        sign.is_over = True
        if sign.timer is not None:
            sign.timer.cancel()
        if sign.is_shown:
            self.lanes.put(sign.chat, sign)

    def _show_soon(self, turn: str, sign: _Sign) -> None:
        try:
            self.lanes.check_room(sign.chat)
        except LaneFull:
            self._signs.pop(turn, None)
        else:
            self.lanes.put(sign.chat, sign)

    async def _work(self, sign: _Sign) -> None:
        """Show a sign or take it off; one that was over before it was shown is not worth a request."""
        if not sign.is_over:
            trouble = await self._try(sign, is_on=True)
            sign.is_shown = trouble is None or (isinstance(trouble, Transient) and trouble.may_have_arrived)
        if sign.is_over and sign.is_shown:
            sign.is_shown = False
            await self._take_off(sign)

    async def _take_off(self, sign: _Sign) -> None:
        """Take a sign off, in several tries: one that stays would say for ever that the message waits."""
        trouble = await self._try(sign, is_on=False)
        for pause in AGAIN_AFTER:
            if not isinstance(trouble, Transient):
                return
            await self._sleep(max(pause, trouble.retry_after or 0.0))
            trouble = await self._try(sign, is_on=False)

    async def _try(self, sign: _Sign, *, is_on: bool) -> Exception | None:
        """Return why it did not work, if it did not."""
        inbound, reacts = sign.inbound, self._reacts(sign.inbound)
        address, message = inbound.address, inbound.message_id or ""
        if reacts is None:
            return Undeliverable("There is no such channel any more.")
        try:
            async with asyncio.timeout(DEADLINE):
                await (reacts.react if is_on else reacts.unreact)(address, message, SEEN)
        except (ChannelError, TimeoutError) as trouble:
            log.debug("sign_lost", channel=address.channel, reason=str(trouble))
            is_late = isinstance(trouble, TimeoutError)
            return Transient("It took too long.", may_have_arrived=True) if is_late else trouble
        except Exception as bug:  # One adapter's bug must not end the daemon.
            log.exception("sign_crashed", channel=address.channel)
            return bug
        return None

    def _reacts(self, inbound: Inbound) -> Reacts | None:
        channel = self._channels.get((inbound.address.channel, inbound.address.account))
        return None if channel is None else abilities_of(channel).reacts
