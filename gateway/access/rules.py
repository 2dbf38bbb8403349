"""Access rules: who may talk to the gateway, and who is an owner."""

from config import ChannelSettings, DmPolicy, GroupPolicy
from gateway.access.live import Live
from gateway.contract import Address, Inbound, PeerKind, Sender
from gateway.errors import Refused

NO_ACCESS = "You no longer have access to this chat, so your message wasn't answered."


def rules_for(live: Live, address: Address) -> ChannelSettings:
    """Return the settings of the bot identity that was written to."""
    return live.rules(address.channel, address.account)


def is_owner(live: Live, address: Address, sender: Sender) -> bool:
    """Return whether `sender` is an owner: proven by the channel, named in the settings, or approved as one."""
    if sender.is_owner:
        return True
    named = f"{address.channel}:{sender.id}" in live.settings.gateway.owners
    return bool(sender.id) and (named or live.book.is_owner(address, sender))


def may_talk(live: Live, address: Address, sender: Sender, guild: str | None = None) -> bool:
    """Return whether `sender` may be answered there. Ids decide, never names; a sender without an id has no access.

    In `group_allow`, the id of a server stands for all of its channels.
    """
    return is_owner(live, address, sender) or is_allowed(live, address, sender, guild)


def is_allowed(live: Live, address: Address, sender: Sender, guild: str | None) -> bool:
    """Return whether the channel's policy gives `sender` access, apart from being an owner."""
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


def check_access(live: Live, inbound: Inbound) -> None:
    """Raise `Refused` if the sender of a message has lost access while it waited."""
    if not may_talk(live, inbound.address, inbound.sender, inbound.guild):
        raise Refused(NO_ACCESS)


def are_same_person(live: Live, one: tuple[str, str], other: tuple[str, str]) -> bool:
    """Return whether two ids, each with its channel, belong to one person: equal, or linked by `identity_links`."""
    if one == other:
        return True
    ids = {":".join(one), ":".join(other)}
    return any(ids <= set(linked) for linked in live.settings.session.identity_links.values())
