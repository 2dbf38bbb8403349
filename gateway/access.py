"""Who may talk: a pure function of settings and of what the channel has proven about the sender."""

from config import ChannelSettings, DmPolicy, GroupPolicy, Settings
from gateway.contract import Inbound, PeerKind, Sender

__all__ = ["is_owner", "may_talk"]


def is_owner(settings: Settings, channel: str, sender: Sender) -> bool:
    return sender.is_owner or f"{channel}:{sender.id}" in settings.gateway.owners


def may_talk(settings: Settings, inbound: Inbound) -> bool:
    """Tell whether `inbound` may be answered; ids decide, never names."""
    channel = inbound.address.channel
    if is_owner(settings, channel, inbound.sender):
        return True
    rules = settings.channels.get(channel, ChannelSettings()).for_account(inbound.address.account)
    if inbound.address.kind is PeerKind.DIRECT:
        return rules.dm_policy is DmPolicy.OPEN or inbound.sender.id in rules.allow
    return rules.group_policy is GroupPolicy.OPEN or (
        rules.group_policy is GroupPolicy.ALLOWLIST and inbound.address.peer in rules.group_allow
    )
