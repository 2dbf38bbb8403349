"""What a person may do to the sessions of a scope. That depends on who can be in the scope, not on the kind of chat."""

from collections.abc import Collection
from enum import Enum

from gateway.access.roles import role_in
from gateway.access.rules import Live, are_same_person, is_shared
from gateway.contract import Address, Inbound, Sender
from gateway.errors import Refused


class Action(Enum):
    """A change that the other people of a scope cannot take back. The value is the refusal for those who may not.

    Everyone in a scope may start, resume, rename and close its sessions: the others can undo that.
    """

    DELETE = "Several people share these sessions, so only an owner may delete one."
    CLEAR = "Several people share this session, so only an owner may clear it. /new starts another one."
    CHOOSE_AGENT = "Several people share this session, so only an owner may change who answers."
    UNDO = "Several people share this session, so only the author of the last message, or an owner, may undo it."
    CHANGE_MEMORY = "Several people share this memory, so only an owner may change it."
    CHOOSE_WORKSPACE = "Only an owner may choose the workspace."


def check_right(live: Live, inbound: Inbound, action: Action, *, is_owner: bool, authors: Collection[str] = ()) -> None:
    """Raise `Refused` if the sender may not do `action` in the scope of the message.

    `authors` are the ids of the people whose messages are undone.
    """
    address, sender = inbound.address, inbound.sender
    if is_owner or is_open_to_all(live, action, address, sender):
        return
    if action is not Action.CHOOSE_WORKSPACE and role_in(live, inbound).may_moderate:
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
    if action is Action.CHOOSE_WORKSPACE:  # Workspaces are the owner's folders, even in a scope of one person.
        return False
    return not is_shared(live, address, sender)
