"""Admission: what is asked of every message before anything is done with it, whatever it is and however it came."""

from collections.abc import Callable
from datetime import datetime

from gateway.access.guests import Person
from gateway.access.live import Live
from gateway.access.pairing import Strangers, Told
from gateway.access.rate_limit import FloodGate, Pace
from gateway.access.rules import is_owner, may_talk, rules_for
from gateway.contract import Inbound, PeerKind, Verdict
from gateway.takeup import TOO_OLD

__all__ = ["Admission"]

TOO_FAST = (
    "That is too fast for me: I take {limit} messages a minute. This one was not taken; send it again in a while."
)


class Admission:
    """Asks who it is, whether it is meant for us, how fast they write and how old it is. A refusal is told once."""

    def __init__(self, live: Live, strangers: Strangers, *, now: Callable[[], datetime]) -> None:
        self._live = live
        self._strangers = strangers
        self._now = now
        self._started = now()
        self._flood = FloodGate()
        self._late = FloodGate()

    async def refusal(self, inbound: Inbound, tell: Told) -> Verdict | None:
        """Return None for what may come in."""
        if not may_talk(self._live, inbound.address, inbound.sender, inbound.guild):
            await self._strangers.turn_away(inbound, tell)
            return Verdict.REFUSED if inbound.address.kind is PeerKind.DIRECT else Verdict.IGNORED
        # An edit may have lost our name, and still concerns us.
        if not inbound.is_addressed and inbound.edits is None:
            return Verdict.IGNORED
        if await self._is_in_pace(inbound, tell) and await self._is_in_time(inbound, tell):
            return None
        return Verdict.REFUSED

    async def _is_in_pace(self, inbound: Inbound, tell: Told) -> bool:
        if is_owner(self._live, inbound.address, inbound.sender):
            return True
        limit = rules_for(self._live, inbound.address).rate_limit
        is_stop = inbound.text.lstrip()[1:5].lower() == "stop"
        # An edit is as new as it is, whenever its message was written.
        age = 0.0 if inbound.edits is not None else max(0.0, (self._now() - inbound.sent_at).total_seconds())
        person = Person.of(inbound.address, inbound.sender)
        pace = self._flood.pace(person, per_minute=limit, is_stop=is_stop, age=age)
        if pace is Pace.TOO_FAST:
            await tell(TOO_FAST.format(limit=limit), ())
        return pace is Pace.FINE

    async def _is_in_time(self, inbound: Inbound, tell: Told) -> bool:
        """Refuse what waited too long at its platform while we were away.

        What was said since our start is in time, whatever the clock has done meanwhile.
        """
        limit = self._live.settings.gateway.max_backlog_age
        is_backlog = inbound.edits is None and inbound.sent_at < self._started
        if not is_backlog or (self._now() - inbound.sent_at).total_seconds() <= limit:
            return True
        if self._late.pace(Person.of(inbound.address, inbound.sender), per_minute=1) is Pace.FINE:
            await tell(TOO_OLD, ())
        return False
