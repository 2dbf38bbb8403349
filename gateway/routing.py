"""Which agent answers a message, and which conversation it belongs to. Pure: settings and an address in, keys out."""

from functools import lru_cache
from typing import assert_never

from msgspec import Struct

from config import Binding, DmScope, GroupScope, Settings
from gateway.contract import Address, PeerKind, Sender
from gateway.errors import Refused

__all__ = ["DEFAULT_AGENT", "Routed", "route"]

DEFAULT_AGENT = "main"
_DEFAULT_ACCOUNT = "default"
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._@+=-")


class Routed(Struct, frozen=True, kw_only=True):
    agent: str
    scope: str


def route(settings: Settings, address: Address, sender: Sender, guild: str | None = None) -> Routed:
    """Name agent and scope. `Refused` when a part is missing that keeps one conversation apart from another."""
    if not address.peer:
        raise Refused("This message does not say which chat it came from, so it cannot be answered.")
    agent = _agent(settings, address, guild)
    if address.kind is PeerKind.DIRECT:
        return Routed(agent=agent, scope=f"agent:{agent}:{_direct(settings, address)}")
    return Routed(agent=agent, scope=f"agent:{agent}:{_shared(settings, address, sender)}")


def _agent(settings: Settings, address: Address, guild: str | None) -> str:
    """Return the agent of the most specific binding: thread > peer > guild > account > channel > default."""
    has = (address.channel, address.account, guild, address.peer, address.thread)
    matching = [binding for binding in settings.bindings if _matches(binding, has)]
    return max(matching, key=_specificity).agent if matching else DEFAULT_AGENT


def _matches(binding: Binding, has: tuple[str | None, ...]) -> bool:
    return all(wanted is None or wanted == value for wanted, value in zip(binding.match, has, strict=True))


def _specificity(binding: Binding) -> tuple[bool, ...]:
    return tuple(wanted is not None for wanted in reversed(binding.match))


def _direct(settings: Settings, address: Address) -> str:
    peer = _person(settings, address)
    match settings.session.dm_scope:
        case DmScope.MAIN:
            return "main"
        case DmScope.PER_PEER:
            return f"direct:{peer}"
        case DmScope.PER_CHANNEL_PEER:
            return f"{address.channel}:direct:{peer}"
        case DmScope.PER_ACCOUNT_CHANNEL_PEER:
            return f"{address.channel}:{address.account}:direct:{peer}"
        case _ as never:
            assert_never(never)


def _person(settings: Settings, address: Address) -> str:
    """Return the name under which the owner has linked this id, or else the id, which cannot look like a name."""
    platform_id = f"{address.channel}:{address.peer}"
    for name, ids in settings.session.identity_links.items():
        if platform_id in ids:
            return f"~{name}"
    return _encoded(address.peer)


def _shared(settings: Settings, address: Address, sender: Sender) -> str:
    parts = [address.channel]
    if address.account != _DEFAULT_ACCOUNT:
        parts.append(address.account)
    parts += [address.kind.value, _encoded(address.peer)]
    if address.thread is not None:
        parts += ["thread", _encoded(address.thread)]
    if settings.session.group_scope is GroupScope.PER_SENDER:
        if not sender.id:
            raise Refused("This message does not say who wrote it, so it cannot be answered here.")
        parts += ["sender", _encoded(sender.id)]
    return ":".join(parts)


@lru_cache(maxsize=4_096)
def _encoded(platform_id: str) -> str:
    """Percent-encode all that could be read as structure. Lone surrogates are bytes too: distinct ids stay distinct."""
    data = platform_id.encode("utf-8", "surrogatepass")
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in data)
