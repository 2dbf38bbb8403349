"""Who may talk: a function of settings, guest book, and what the channel has proven about the sender."""

from config import ChannelSettings, DmPolicy, GroupPolicy
from gateway.access.live import Live
from gateway.contract import Address, Inbound, PeerKind, Sender
from gateway.errors import Refused

__all__ = ["SHUT_OUT", "are_same_person", "check_still_welcome", "is_owner", "may_talk", "rules_for"]

SHUT_OUT = "You may not talk here any more, so this was not answered."


def rules_for(live: Live, address: Address) -> ChannelSettings:
    """Return the settings of the bot identity that was written to."""
    return live.rules(address.channel, address.account)


def is_owner(live: Live, address: Address, sender: Sender) -> bool:
    """Tell whether `sender` is an owner: proven by the channel, named in the settings, or approved as one."""
    if sender.is_owner:
        return True
    named = f"{address.channel}:{sender.id}" in live.settings.gateway.owners
    return bool(sender.id) and (named or live.book.is_owner(address, sender))


def may_talk(live: Live, address: Address, sender: Sender, guild: str | None = None) -> bool:
    """Tell whether `sender` may be answered there; ids decide, never names, and who has none is nobody.

    Among the groups that are allowed, the id of a server stands for all of its channels.
    """
    if is_owner(live, address, sender):
        return True
    if not sender.id:
        return False
    rules = rules_for(live, address)
    peers = {address.peer, live.home(address).peer, *filter(None, [guild])}
    if address.kind is PeerKind.DIRECT:
        is_known = rules.dm_policy is DmPolicy.PAIRING and live.book.is_guest(address, sender)
        return rules.dm_policy is DmPolicy.OPEN or sender.id in rules.allow or is_known
    return rules.group_policy is GroupPolicy.OPEN or (
        rules.group_policy is GroupPolicy.ALLOWLIST and not peers.isdisjoint(rules.group_allow)
    )


def check_still_welcome(live: Live, inbound: Inbound) -> None:
    """Refuse a message whose sender was shut out while it waited."""
    if not may_talk(live, inbound.address, inbound.sender, inbound.guild):
        raise Refused(SHUT_OUT)


def are_same_person(live: Live, one: tuple[str, str], other: tuple[str, str]) -> bool:
    """Tell whether two ids, each with its channel, are one person's: the same, or linked by the owner."""
    if one == other:
        return True
    ids = {":".join(one), ":".join(other)}
    return any(ids <= set(linked) for linked in live.settings.session.identity_links.values())
