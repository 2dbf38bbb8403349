"""Signs: a reaction on a message that has to wait. Nothing depends on it, and nobody waits for it."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

import structlog

from gateway.abilities import abilities_of
from gateway.contract import Channel, Inbound
from gateway.errors import ChannelError
from gateway.lanes import LaneFull, Lanes

__all__ = ["SEEN", "Signs"]

log = structlog.get_logger()

SEEN = "👀"
DEADLINE = 10.0
MAX_WAITING = 3
"""Signs that wait in one chat; one that comes too late says nothing any more, so more are dropped."""
MAX_IN_ALL = 500


class Signs:
    def __init__(self, channels: Mapping[tuple[str, str], Channel]) -> None:
        self._channels = channels
        self.lanes: Lanes[Inbound] = Lanes(self._show, name="sign", max_waiting=MAX_WAITING, max_in_all=MAX_IN_ALL)

    def seen(self, inbound: Inbound) -> None:
        """Show that a message was seen and waits, where the channel can."""
        address = inbound.address
        channel = self._channels.get((address.channel, address.account))
        if channel is None or inbound.message_id is None or abilities_of(channel).reacts is None:
            return
        key = f"{address.channel}:{address.account}:{address.peer}"
        with suppress(LaneFull):
            self.lanes.check_room(key)
            self.lanes.put(key, inbound)

    async def _show(self, inbound: Inbound) -> None:
        address = inbound.address
        channel = self._channels.get((address.channel, address.account))
        reacts = None if channel is None else abilities_of(channel).reacts
        if reacts is None:
            return
        try:
            async with asyncio.timeout(DEADLINE):
                await reacts.react(address, inbound.message_id or "", SEEN)
        except (ChannelError, TimeoutError) as trouble:
            log.debug("sign_lost", channel=address.channel, reason=str(trouble))
        except Exception:  # One adapter's bug must not end the daemon.
            log.exception("sign_crashed", channel=address.channel)
