"""Where a conversation of another gateway belongs with us: its key is read, and routed as a message from there is."""

import re
from dataclasses import dataclass

from config import Settings
from gateway.contract import Address, PeerKind, Sender
from gateway.errors import Refused
from gateway.importing.reading import Foreign
from gateway.routing import DEFAULT_AGENT, route

__all__ = ["Place", "placed"]

_SLUG = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_TERMINALS = {"cli", "terminal", "console"}
_KINDS = {"peer": PeerKind.DIRECT, "direct": PeerKind.DIRECT, "group": PeerKind.GROUP, "channel": PeerKind.CHANNEL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """`address` is None for a scope that is no single chat's."""

    scope: str
    agent: str
    address: Address | None


def placed(settings: Settings, foreign: Foreign, user: str) -> Place:
    """Find the scope in which its people go on today; `Refused` when the key does not tell.

    `user` is who sits at this machine, and has talked to the other gateway by its terminal.
    """
    parts = foreign.key.split(":")
    if parts[0] == "agent" and len(parts) > 1:
        parts = parts[1:]
    agent, *rest = parts
    if rest == ["main"]:
        name = agent if agent in settings.agents else DEFAULT_AGENT
        return Place(scope=f"agent:{name}:main", agent=name, address=None)
    address = _address(rest, user)
    if address is None:
        raise Refused(
            f"its key {foreign.key!r} does not tell which chat it belongs to; say so with --scope"
            if foreign.key
            else "it does not tell which chat it belongs to; say so with --scope"
        )
    routed = route(settings, address, Sender(id=address.peer))
    return Place(scope=routed.scope, agent=routed.agent, address=address)


def _address(parts: list[str], user: str) -> Address | None:
    """Read `[channel:]CHANNEL[:KIND]:PEER`; a terminal has only one peer."""
    if parts[:1] == ["channel"]:
        parts = parts[1:]
    if not parts or not _SLUG.fullmatch(parts[0]):
        return None
    channel, *rest = parts
    if channel in _TERMINALS:
        return Address(channel="terminal", kind=PeerKind.DIRECT, peer=user)
    kind = _KINDS.get(rest[0]) if len(rest) > 1 else None
    peer = ":".join(rest[1:] if kind else rest)
    return Address(channel=channel, kind=kind or PeerKind.DIRECT, peer=peer) if peer else None
