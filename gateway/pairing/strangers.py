"""What those are told who may not talk: how to get in, once, and nothing else."""

from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timedelta

from config import DmPolicy
from gateway.access import rules_for
from gateway.contract import Inbound, PeerKind
from gateway.live import Live
from gateway.pairing.guests import Person
from gateway.pairing.pairing import Pairing, Told

__all__ = ["Strangers"]

REMEMBERED = 1_000
TOLD_FOR = timedelta(days=1)
"""Nobody is told the same again before that."""
TOLD_AT_ONCE = 20
"""Strangers that are told on one channel within an hour; a crowd is left in silence, since each answer costs us."""
WITHIN = timedelta(hours=1)


class Strangers:
    def __init__(self, live: Live, pairing: Pairing, *, now: Callable[[], datetime]) -> None:
        self._live = live
        self._pairing = pairing
        self._now = now
        self._told: OrderedDict[Person, datetime] = OrderedDict()

    async def turn_away(self, inbound: Inbound, tell: Told) -> None:
        """Tell somebody who wrote directly how to get in; in a group, strangers get no answer."""
        if inbound.address.kind is not PeerKind.DIRECT or not inbound.sender.id:
            return
        rules = rules_for(self._live, inbound.address)
        if rules.dm_policy is DmPolicy.PAIRING:
            if not await self._pairing.ask(inbound, tell):
                await self._tell_once(inbound, "Others are waiting to be let in; write again in an hour.", tell)
        else:
            await self._tell_once(inbound, "", tell)

    async def _tell_once(self, inbound: Inbound, more: str, tell: Told) -> None:
        person, now = Person.of(inbound.address, inbound.sender), self._now()
        told = [at for other, at in self._told.items() if other.channel == person.channel and abs(now - at) < WITHIN]
        if len(told) >= TOLD_AT_ONCE or (person in self._told and abs(now - self._told[person]) < TOLD_FOR):
            return
        self._told[person] = now
        self._told.move_to_end(person)
        if len(self._told) > REMEMBERED:
            self._told.popitem(last=False)
        text = (
            f"I do not know you yet. My owner can let you in by adding your id, {person.sender}, "
            f"to channels.{person.channel}.allow. {more}"
        )
        await tell(text.rstrip(), ())
