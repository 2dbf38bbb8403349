"""Finds the scope for a conversation of another gateway: routes it like a message from its chat."""

from dataclasses import dataclass

from config import Settings
from gateway.contract import Address, PeerKind, Sender
from gateway.errors import Refused
from gateway.importing.values import TERMINAL, Conversation, Place
from gateway.routing import DEFAULT_AGENT, route


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """`address` is None for a scope that is shared by several chats."""

    scope: str
    agent: str
    address: Address | None


def find_destinations(settings: Settings, conversation: Conversation, user: str) -> list[Destination]:
    """Return the scopes in which the people of this conversation may continue, the most likely one first.

    There are several if nothing says whether its chat is a direct chat or a group. `user` is the user of this machine,
    who talked to the other gateway in its terminal. Raises `Refused` if it names no chat.
    """
    if conversation.scope:
        agent = conversation.scope.split(":")[1]
        known = agent if agent in settings.agents else DEFAULT_AGENT
        # Our own export names a scope of ours. That of another gateway may have an agent that is not here.
        scope = conversation.scope
        if agent != known and scope == f"agent:{agent}:main":
            scope = f"agent:{known}:main"
        return [Destination(scope=scope, agent=known, address=None)]
    place = conversation.place
    if place is None:
        key = f"its key {conversation.key!r}" if conversation.key else "it"
        raise Refused(f"{key} doesn't name a chat; choose one with --scope")
    return [_routed(settings, place, kind, conversation.agent, user) for kind in _kinds(place)]


def address_of(place: Place, kind: PeerKind, account: str, user: str) -> Address:
    peer = place.peer or (user if place.channel == TERMINAL else "")
    return Address(channel=place.channel, account=account, kind=kind, peer=peer, thread=place.thread)


def _kinds(place: Place) -> list[PeerKind]:
    if place.kind is not None:
        return [place.kind]
    if place.peer.startswith("-"):  # Where ids are numbers, those of groups are negative.
        return [PeerKind.GROUP, PeerKind.CHANNEL, PeerKind.DIRECT]
    return [PeerKind.DIRECT, PeerKind.GROUP, PeerKind.CHANNEL]


def _routed(settings: Settings, place: Place, kind: PeerKind, agent: str, user: str) -> Destination:
    """Route a message from the place. An agent of the same name as the other gateway's keeps its conversations."""
    table = settings.channels.get(place.channel)
    accounts = table.account_names() if table is not None else ()
    account = place.account if place.account in accounts else "default"
    address = address_of(place, kind, account, user)
    routed = route(settings, address, Sender(id=place.sender or address.peer))
    if agent in settings.agents and agent != routed.agent:
        scope = f"agent:{agent}:{routed.scope.split(':', 2)[2]}"
        return Destination(scope=scope, agent=agent, address=address)
    return Destination(scope=routed.scope, agent=routed.agent, address=address)
