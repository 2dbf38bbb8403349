"""What a person may do to the sessions of a scope. That depends on who can be in the scope, not on the kind of chat."""

from collections.abc import Collection
from enum import Enum

from msgspec.structs import replace

from config import DmScope, GroupScope
from gateway.access.rules import Live, are_same_person, may_talk
from gateway.contract import Address, Inbound, PeerKind, Sender
from gateway.errors import Refused


class Action(Enum):
    """A change that the other people of a scope cannot take back. The value is the refusal for those who may not.

    Everyone in a scope may start, resume, rename and close its sessions: the others can undo that.
    """

    DELETE = "Several people share these sessions, so only an owner may delete one."
    CLEAR = "Several people share this session, so only an owner may clear it. /new starts another one."
    CHOOSE_AGENT = "Several people share this session, so only an owner may change who answers."
    UNDO = "Several people share this session, so only the author of the last message, or an owner, may undo it."
    CHOOSE_WORKSPACE = "Only an owner may choose the workspace."


def check_right(live: Live, inbound: Inbound, action: Action, *, is_owner: bool, authors: Collection[str] = ()) -> None:
    """Raise `Refused` if the sender may not do `action` in the scope of the message.

    `authors` are the ids of the people whose messages are undone.
    """
    address, sender = inbound.address, inbound.sender
    if is_owner or is_open_to_all(live, action, address, sender):
        return
    me = (address.channel, sender.id)
    # The transcript has no channels, so an author may be a linked id of any channel.
    channels = live.settings.channels
    if action is Action.UNDO and all(
        author == sender.id or any(are_same_person(live, me, (channel, author)) for channel in channels)
        for author in authors
    ):
        return
    raise Refused(action.value)


def is_open_to_all(live: Live, action: Action, address: Address, sender: Sender) -> bool:
    """Return whether people who are not owners may do `action` in this scope."""
    if action is Action.CHOOSE_WORKSPACE:  # Workspaces are the owner's folders, whoever is in the scope.
        return False
    return not is_shared(live, address, sender)


def is_shared(live: Live, address: Address, sender: Sender) -> bool:
    """Return whether people other than `sender` can be in the scope of a message. `routing.py` makes the scopes."""
    session = live.settings.session
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
