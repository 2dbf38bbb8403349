"""Delivery health: which channels cannot send at the moment, and which replies are late."""

from collections.abc import Callable, Iterator
from time import monotonic

import structlog
from msgspec import Struct

from gateway.contract import Address
from gateway.text import excerpt

log: structlog.stdlib.BoundLogger = structlog.get_logger()

Identity = tuple[str, str]
"""The name and the account of a channel."""

OUTAGE_AFTER = 30.0
"""Seconds of failed sends, without one that the platform has answered, until a channel counts as unable to send."""
LATE_AFTER = 300.0
"""Seconds of failed sends until a reply counts as late, although the platform answers other sends of its channel."""
_MAX_REASON_CHARS = 200


class _Failing(Struct):
    identity: Identity
    since: float
    reason: str
    is_logged: bool = False
    is_alone: bool = False


class Outage(Struct, frozen=True, kw_only=True):
    """A channel that cannot send. `chats` have a reply that has failed; more may wait behind it."""

    channel: str
    account: str
    seconds: float
    reason: str
    chats: int


class DeliveryHealth:
    """Learns of every send, and logs each outage twice: at its start and at its end.

    A reply that fails is no outage yet: the platform may refuse only its chat, or ask to wait for a few seconds.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self.outage_after = OUTAGE_AFTER
        self._failing: dict[str, _Failing] = {}
        """By the key of the reply. Each chat sends one reply at a time, so this has at most one for each chat."""
        self._answered: dict[Identity, float] = {}
        """When the platform has last answered a send of a channel."""
        self._logged: dict[Identity, float] = {}
        """When the outages began that have been logged."""

    def failed(self, key: str, address: Address, reason: str, *, since: float, is_alone: bool = False) -> None:
        """Note a send that failed. `since` is when it began: it may have run into a timeout.

        If it `is_alone`, its server is that of no other chat, so its failure is no outage of the channel.
        """
        identity = (address.channel, address.account)
        failing = self._failing.setdefault(key, _Failing(identity, since, "", is_alone=is_alone))
        failing.reason = excerpt(reason, _MAX_REASON_CHARS)
        outage = next((each for each in self.outages() if (each.channel, each.account) == identity), None)
        if outage is not None and identity not in self._logged:
            self._logged[identity] = self.clock() - outage.seconds
            log.warning("delivery_interrupted", channel=outage.channel, account=outage.account, reason=outage.reason)
        elif outage is None and not failing.is_logged and self.clock() - failing.since > LATE_AFTER:
            failing.is_logged = True
            log.warning("reply_delayed", channel=address.channel, account=address.account, key=key, reason=reason)

    def answered(self, address: Address) -> None:
        """Note a send that the platform has accepted or refused: it can be reached."""
        identity = (address.channel, address.account)
        self._answered[identity] = self.clock()
        if identity in self._logged:
            seconds = round(self.clock() - self._logged.pop(identity), 1)
            log.info("delivery_resumed", channel=address.channel, account=address.account, seconds=seconds)

    def forget(self, key: str) -> None:
        """Forget a reply that was sent, or that is not being sent any more."""
        self._failing.pop(key, None)

    def outages(self) -> Iterator[Outage]:
        """Yield the channels that cannot send."""
        now = self.clock()
        found: dict[Identity, list[_Failing]] = {}
        for failing in self._failing.values():
            if not failing.is_alone and failing.since >= self._answered.get(failing.identity, float("-inf")):
                found.setdefault(failing.identity, []).append(failing)
        for (channel, account), failures in found.items():
            oldest = min(failures, key=lambda each: each.since)
            if now - oldest.since >= self.outage_after:
                yield Outage(
                    channel=channel,
                    account=account,
                    seconds=now - oldest.since,
                    reason=oldest.reason,
                    chats=len(failures),
                )

    def late(self) -> int:
        """Return how many replies have failed for long, on channels that can send."""
        now = self.clock()
        out = {(outage.channel, outage.account) for outage in self.outages()}
        return sum(each.identity not in out and now - each.since > LATE_AFTER for each in self._failing.values())
