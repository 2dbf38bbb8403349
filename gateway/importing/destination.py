"""Finds the scope for a conversation of another gateway: parses its key, and routes it like a message from there."""

import re
from dataclasses import dataclass

from config import Settings
from gateway.contract import Address, PeerKind, Sender
from gateway.errors import Refused
from gateway.importing.parse import ForeignSession
from gateway.routing import DEFAULT_AGENT, route

_CHANNEL = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_TERMINALS = {"cli", "terminal", "console"}
_KINDS = {"peer": PeerKind.DIRECT, "direct": PeerKind.DIRECT, "group": PeerKind.GROUP, "channel": PeerKind.CHANNEL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """`address` is None for a scope that is shared by several chats."""

    scope: str
    agent: str
    address: Address | None


def find_destinations(settings: Settings, session: ForeignSession, user: str) -> list[Destination]:
    """Return the scopes in which the people of this session may continue, the most likely one first.

    There are several if the file does not say whether its chat is a direct chat or a group. `user` is the user of this
    machine, who talked to the other gateway in its terminal. Raises `Refused` if the file names no chat.
    """
    if not session.chat:
        return [_from_key(settings, session, user)]
    if session.chat.startswith("agent:"):  # Our own export names the scope of a session that was started in no chat.
        agent = session.chat.split(":")[1]
        known = agent if agent in settings.agents else DEFAULT_AGENT
        return [Destination(scope=session.chat, agent=known, address=None)]
    if _parse_address([session.channel, session.chat], user) is None:
        raise Refused(f"its channel {session.channel!r} is not the name of a channel; choose the scope with --scope")
    kinds = [PeerKind.DIRECT, PeerKind.GROUP, PeerKind.CHANNEL]
    if session.chat.startswith("-"):  # Where ids are numbers, those of groups are negative.
        kinds = [PeerKind.GROUP, PeerKind.CHANNEL, PeerKind.DIRECT]
    if session.channel in _TERMINALS:
        kinds = [PeerKind.DIRECT]
    found = []
    for kind in kinds:
        address = _parse_address([session.channel, kind.value, session.chat], user)
        if address is not None:
            routed = route(settings, address, Sender(id=address.peer))
            found.append(Destination(scope=routed.scope, agent=routed.agent, address=address))
    return found


def _from_key(settings: Settings, session: ForeignSession, user: str) -> Destination:
    """Return the scope that the key of the session names."""
    parts = session.key.split(":")
    # miniclaw writes `agent:NAME:...`, and claw0 `NAME:...`.
    if parts[0] == "agent" and len(parts) > 1:
        parts = parts[1:]
    agent, *rest = parts
    if rest == ["main"]:
        name = agent if agent in settings.agents else DEFAULT_AGENT
        return Destination(scope=f"agent:{name}:main", agent=name, address=None)
    address = _parse_address(rest, user)
    if address is None:
        key = f"its key {session.key!r}" if session.key else "it"
        raise Refused(f"{key} doesn't name a chat; choose one with --scope")
    routed = route(settings, address, Sender(id=address.peer))
    return Destination(scope=routed.scope, agent=routed.agent, address=address)


def _parse_address(parts: list[str], user: str) -> Address | None:
    """Parse `[channel:]CHANNEL[:KIND]:PEER`. A terminal has only one peer."""
    if parts[:1] == ["channel"]:
        parts = parts[1:]
    if not parts or not _CHANNEL.fullmatch(parts[0]):
        return None
    channel, *rest = parts
    if channel in _TERMINALS:
        return Address(channel="terminal", kind=PeerKind.DIRECT, peer=user)
    kind = _KINDS.get(rest[0]) if len(rest) > 1 else None
    peer = ":".join(rest[1:] if kind else rest)
    return Address(channel=channel, kind=kind or PeerKind.DIRECT, peer=peer) if peer else None
