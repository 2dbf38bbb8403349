"""Access rules: who may talk, who is an owner and who shares a scope, by the current settings and guests (`Live`)."""

from dataclasses import dataclass, field

from msgspec.structs import replace

from config import (
    OWNER_ROLE,
    ChannelSettings,
    DmPolicy,
    DmScope,
    GroupPolicy,
    GroupScope,
    ScheduleSettings,
    Settings,
)
from config.types import PROGRAM_CHANNELS
from gateway.access.guests import GuestBook, Person
from gateway.access.role_table import RoleTable
from gateway.access.tokens import TokenBook
from gateway.contract import Address, Inbound, Outbound, PeerKind, Sender, TokenScope
from gateway.errors import GatehouseError


@dataclass(slots=True)
class Live:
    """The settings, guests, API tokens and chat migrations in force. A reload replaces `settings`."""

    settings: Settings
    guest_book: GuestBook = field(default_factory=GuestBook)
    token_book: TokenBook = field(default_factory=TokenBook)
    first_addresses: dict[Address, Address] = field(default_factory=dict)
    """The first address of each chat that its platform has given another id."""
    _rules: tuple[Settings, dict[tuple[str, str], ChannelSettings]] | None = None
    _roles: tuple[Settings, RoleTable] | None = None

    @property
    def roles(self) -> RoleTable:
        """The roles of the settings in force."""
        if self._roles is None or self._roles[0] is not self.settings:
            self._roles = (self.settings, RoleTable(self.settings))
        return self._roles[1]

    def rules(self, address: Address) -> ChannelSettings:
        """Return the settings of the bot identity at `address`. They are cached, since each message needs them."""
        if self._rules is None or self._rules[0] is not self.settings:
            self._rules = (self.settings, {})
        known, identity = self._rules[1], (address.channel, address.account)
        if identity not in known:
            found = self.settings.channels.get(address.channel, ChannelSettings())
            known[identity] = found.for_account(address.account)
        return known[identity]

    def first_address(self, address: Address) -> Address:
        """Return the first address of the chat of `address`. A chat that has moved keeps its conversation."""
        if not self.first_addresses:
            return address
        # Threads move together with their chat.
        before = self.first_addresses.get(replace(address, thread=None))
        return address if before is None else replace(before, thread=address.thread)

    def current_address(self, address: Address) -> Address:
        """Return the current address of the chat that had `address` some time ago."""
        if not self.first_addresses:
            return address
        first = replace(self.first_address(address), thread=None)
        moved = [new for new, before in self.first_addresses.items() if before == first]
        return replace(moved[-1], thread=address.thread) if moved else address


ACCESS_LOST = "Stopped: the person who asked for this no longer has access. Please resend your message if it is yours."
"""For the transcript, and for other people whose messages the same turn would have answered."""


class AccessLost(GatehouseError):
    """The sender of a message has lost access since it was accepted. They are told nothing more."""

    def __init__(self) -> None:
        super().__init__(ACCESS_LOST)


def is_owner(live: Live, address: Address, sender: Sender) -> bool:
    """Return whether `sender` is an owner: proven by the channel, named in the settings, or approved as one.

    Of a program, the token alone decides, and of a schedule the settings. A webhook is never an owner.
    """
    if sender.token:
        token = live.token_book.find(sender.token)
        return token is not None and TokenScope.ADMIN in token.scopes
    if sender.schedule:
        found = find_schedule(live, sender.schedule)
        return found is not None and found.role == OWNER_ROLE
    if sender.is_verified:
        return False
    if sender.is_owner:  # The channel has proof, such as a token.
        return True
    named = f"{address.channel}:{sender.id}" in live.settings.gateway.owners
    return bool(sender.id) and (named or live.guest_book.is_owner(address, sender))


def has_chat_owner(live: Live) -> bool:
    """Return whether a person on a chat platform is an owner. The holder of the HTTP token always is."""
    return bool(live.settings.gateway.owners) or any(guest.is_owner for guest in live.guest_book.guests.values())


def may_talk(live: Live, address: Address, sender: Sender, guild: str | None = None) -> bool:
    """Return whether `sender` may be answered there. Ids decide, never names; a sender without an id has no access.

    In `group_allow`, the id of a server stands for all of its channels.
    """
    return is_owner(live, address, sender) or is_allowed(live, address, sender, guild)


def is_allowed(live: Live, address: Address, sender: Sender, guild: str | None) -> bool:
    """Return whether the channel's policy gives `sender` access, apart from being an owner.

    A program has access while its token is valid, and a webhook or a schedule while the settings have it.
    """
    if sender.token:
        return live.token_book.find(sender.token) is not None
    if sender.schedule:
        return find_schedule(live, sender.schedule) is not None
    if not sender.id:
        return False
    rules = live.rules(address)
    if sender.is_verified:
        return rules.enabled and sender.id in rules.hooks
    is_listed = sender.id in rules.allow
    if not is_listed and live.guest_book.is_revoked(address, sender):
        return False  # In groups too, until they are approved again.
    if address.kind is PeerKind.DIRECT:
        is_known = rules.dm_policy is DmPolicy.PAIRING and live.guest_book.is_guest(address, sender)
        return rules.dm_policy is DmPolicy.OPEN or is_listed or is_known
    # A group may be listed under its current id, under its first id, or by its server.
    peers = {address.peer, live.first_address(address).peer, *filter(None, [guild])}
    return rules.group_policy is GroupPolicy.OPEN or (
        rules.group_policy is GroupPolicy.ALLOWLIST and not peers.isdisjoint(rules.group_allow)
    )


def find_schedule(live: Live, name: str) -> ScheduleSettings | None:
    """Return a schedule of the settings, or None if they have it no more."""
    return next((each for each in live.settings.schedules if each.name == name), None)


def has_access(live: Live, inbound: Inbound) -> bool:
    """Return whether the sender of an accepted message still has access."""
    return may_talk(live, inbound.address, inbound.sender, inbound.guild)


def check_access(live: Live, inbound: Inbound) -> None:
    """Raise `AccessLost` if the sender of a message has lost access while it waited."""
    if not has_access(live, inbound):
        raise AccessLost


def may_receive(live: Live, message: Outbound) -> bool:
    """Return whether a message may still be sent: the person whom it answers has access, or it answers no one."""
    return message.recipient is None or may_talk(live, message.address, message.recipient, message.guild)


def named_people(settings: Settings) -> set[Person]:
    """Return the people to whom the settings give access by their id."""
    found: set[Person] = set()
    for name, channel in settings.channels.items():
        ids = {owner.partition(":")[2] for owner in settings.gateway.owners if owner.partition(":")[0] == name}
        for account in channel.account_names():
            allowed = ids.union(channel.for_account(account).allow)
            found |= {Person(channel=name, account=account, sender=each) for each in allowed}
    return found


def are_same_person(live: Live, one: tuple[str, str], other: tuple[str, str]) -> bool:
    """Return whether two ids, each with its channel, belong to one person: equal, or linked by `identity_links`."""
    if one == other:
        return True
    # Identity links are written as `channel:id`.
    ids = {":".join(one), ":".join(other)}
    return any(ids <= set(linked) for linked in live.settings.session.identity_links.values())


def is_shared(live: Live, address: Address, sender: Sender) -> bool:
    """Return whether people other than `sender` can be in the scope of a message. `routing.py` makes the scopes."""
    session = live.settings.session
    if address.channel in PROGRAM_CHANNELS:  # Each session of a program has a scope of its own.
        return False
    if address.kind is not PeerKind.DIRECT:
        # Anonymous administrators write with the id of their group, so that id is not one person.
        return session.group_scope is not GroupScope.PER_SENDER or sender.id == address.peer
    if session.dm_scope is DmScope.MAIN:
        return True
    if session.dm_scope is not DmScope.PER_PEER:
        return False
    # The scope `per-peer` has no channel in its key. Another person may have the same id on another channel, unless
    # a link says that it is the same person.
    me = (address.channel, sender.id)
    return any(
        may_talk(live, replace(address, channel=channel, account=account), replace(sender, is_owner=False))
        for channel, table in live.settings.channels.items()
        if channel != address.channel and table.enabled and not are_same_person(live, me, (channel, sender.id))
        for account in table.account_names()
    )
