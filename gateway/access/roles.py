"""Roles: which role a person, a chat or a program has now, and whether a person may use a command."""

from collections.abc import Iterable

from config import GUEST_ROLE, MEMBER_ROLE, OWNER_ROLE
from config.settings.roles import NOT_GRANTED, first_word
from gateway.access.guests import Guest, Person
from gateway.access.role_table import ANSWERS, AskerRoles, Role
from gateway.access.rules import Live, find_schedule, is_owner
from gateway.contract import Address, Inbound, Sender
from gateway.errors import Refused


def role_of(live: Live, address: Address, sender: Sender, guild: str | None = None) -> Role:
    """Return the role of `sender` in a chat. It is never stored with a message, so that a change holds at once.

    The first of these counts: an owner; the role of a token, of a schedule or of a webhook; the person's own role, by
    the settings or by their approval; that of the chat or of its server; `member` for people who are listed or
    approved; `guest`.
    """
    roles = live.roles
    if is_owner(live, address, sender):
        return roles[OWNER_ROLE]
    if sender.token:
        token = live.token_book.find(sender.token)
        return roles[(token.role if token is not None else "") or MEMBER_ROLE]
    if sender.schedule:
        found = find_schedule(live, sender.schedule)
        return roles[found.role if found is not None else GUEST_ROLE]
    if sender.is_verified:
        hook = live.rules(address).hooks.get(sender.id)
        return roles[hook.role if hook is not None else GUEST_ROLE]
    person = Person.of(address, sender)
    if (own := own_role(live, person)) is not None:
        return own
    if roles.chats:
        # A chat may be listed under its current id, under its first id, or by its server.
        for peer in (address.peer, live.first_address(address).peer, guild):
            if peer and (name := roles.chats.get(f"{address.channel}:{peer}")):
                return roles[name]
    is_known = person in live.guest_book.guests or (bool(sender.id) and sender.id in live.rules(address).allow)
    return roles[MEMBER_ROLE if is_known else GUEST_ROLE]


def own_role(live: Live, person: Person) -> Role | None:
    """Return the role that a person has in every chat, by the settings or by their approval, or None."""
    name = f"{person.channel}:{person.sender}"
    guest = live.guest_book.guests.get(person)
    if name in live.settings.gateway.owners or (guest is not None and guest.is_owner):
        return live.roles[OWNER_ROLE]
    own = live.roles.people.get(name) or (guest.role if guest is not None else "") or _linked_role(live, name)
    return live.roles[own] if own else None


def _linked_role(live: Live, name: str) -> str:
    """Return the role with which the same person was approved under another id. They become no owner by a link."""
    linked = {each for ids in live.settings.session.identity_links.values() if name in ids for each in ids}
    # A copy: tools ask for the role in threads, while the event loop changes the guest book.
    guests = list(live.guest_book.guests.values()) if linked else ()
    roles = (each.role for each in guests if each.role and f"{each.person.channel}:{each.person.sender}" in linked)
    return next(roles, "")


def current_role(live: Live, guest: Guest) -> str:
    """Return the name of the role that an approved person has now, whether the settings still define it or not."""
    role = own_role(live, guest.person)
    return MEMBER_ROLE if role is None else role.missing or role.name


def configured_role(live: Live, person: Person) -> str:
    """Return the name of the role that the settings give to a person, or an empty string. It wins over an approval."""
    name = f"{person.channel}:{person.sender}"
    return OWNER_ROLE if name in live.settings.gateway.owners else live.roles.people.get(name, "")


def check_changeable(live: Live, guest: Guest) -> None:
    """Raise `Refused` if the settings give a person their role."""
    if role := configured_role(live, guest.person):
        raise Refused(f"The configuration gives {guest.name or guest.person} the role {role}. Change it there.")


def role_in(live: Live, inbound: Inbound) -> Role:
    """Return the role of the sender of a message."""
    return role_of(live, inbound.address, inbound.sender, inbound.guild)


def roles_of_all(live: Live, messages: Iterable[Inbound]) -> AskerRoles:
    """Return the roles of the senders of messages that one turn answers."""
    return AskerRoles(role_in(live, inbound) for inbound in messages)


def check_command(role: Role, command: str, *, is_for_owners: bool = False) -> None:
    """Raise `Refused` if the role keeps people from a command.

    One for owners passes if the role has no list of commands, or if none can grant it: its handler says why it is for
    owners only. `Call.is_granted` tells it whether to run.
    """
    if role.may_use(command, is_for_owners=is_for_owners):
        return
    if is_for_owners and (role.settings.commands is None or first_word(command) in NOT_GRANTED):
        return
    if command in ANSWERS:
        raise Refused(f"People with the role {role.name} can't approve tool calls.")
    raise Refused(f"People with the role {role.name} can't use /{command}. /help lists what you can use.")
