"""Routing: which agent answers a message, and which scope it belongs to. Pure: settings and an address in, keys out."""

from functools import lru_cache
from typing import assert_never

from msgspec import Struct

from config import Binding, DmScope, GroupScope, Settings
from config.types import PROGRAM_CHANNELS
from gateway.contract import Address, PeerKind, Sender
from gateway.errors import Refused

DEFAULT_AGENT = "main"
_DEFAULT_ACCOUNT = "default"
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._@+=-")


class Routed(Struct, frozen=True, kw_only=True):
    agent: str
    scope: str


def route(settings: Settings, address: Address, sender: Sender, guild: str | None = None) -> Routed:
    """Return agent and scope. Raises `Refused` if an id is missing that keeps conversations apart."""
    if not address.peer:
        raise Refused("This message has no chat ID, so I can't answer it.")
    # The most specific binding wins: thread > peer > guild > account > channel > default.
    has = (address.channel, address.account, guild, address.peer, address.thread)
    matching = [
        binding
        for binding in settings.bindings
        if all(wanted is None or wanted == value for wanted, value in zip(binding.match, has, strict=True))
    ]
    agent = max(matching, key=_specificity).agent if matching else DEFAULT_AGENT
    is_direct = address.kind is PeerKind.DIRECT
    rest = _direct_scope(settings, address) if is_direct else _group_scope(settings, address, sender)
    return Routed(agent=agent, scope=f"agent:{agent}:{rest}")


def _specificity(binding: Binding) -> tuple[bool, ...]:
    return tuple(wanted is not None for wanted in reversed(binding.match))


def _direct_scope(settings: Settings, address: Address) -> str:
    platform_id = f"{address.channel}:{address.peer}"
    linked = (name for name, ids in settings.session.identity_links.items() if platform_id in ids)
    name = next(linked, None)
    # An encoded id never contains `~`, so no id can pass for a linked name.
    person = _encoded(address.peer) if name is None else f"~{name}"
    match settings.session.dm_scope:
        case DmScope.MAIN:
            return "main"
        case DmScope.PER_PEER:
            return f"direct:{person}"
        case DmScope.PER_CHANNEL_PEER:
            return f"{address.channel}:direct:{person}"
        case DmScope.PER_ACCOUNT_CHANNEL_PEER:
            return f"{address.channel}:{address.account}:direct:{person}"
        case _ as never:
            assert_never(never)


_DM_SCOPES = {2: DmScope.PER_PEER, 3: DmScope.PER_CHANNEL_PEER, 4: DmScope.PER_ACCOUNT_CHANNEL_PEER}
"""By the number of parts after the agent in the key of a direct scope."""


def linked_scopes(settings: Settings, scope: str) -> tuple[str, ...]:
    """Return the other direct scopes of the same person with the same agent, by the links of the settings.

    A scope of a group, of a program or of a person without links has none.
    """
    parts = scope.split(":")
    name, agent = parts[-1].removeprefix("~"), ":".join(parts[:2])
    # An encoded id never begins with `~`, so it cannot pass for a linked name.
    if not parts[-1].startswith("~") or parts[-2] != "direct":
        return ()
    channels = dict.fromkeys(each.partition(":")[0] for each in settings.session.identity_links.get(name, ()))
    found: list[str] = []
    match settings.session.dm_scope:
        case DmScope.PER_CHANNEL_PEER:
            found = [f"{agent}:{channel}:direct:~{name}" for channel in channels]
        case DmScope.PER_ACCOUNT_CHANNEL_PEER:
            tables = settings.channels
            found = [
                f"{agent}:{channel}:{account}:direct:~{name}"
                for channel in channels
                for account in (tables[channel].account_names() if channel in tables else (_DEFAULT_ACCOUNT,))
            ]
        case DmScope.MAIN | DmScope.PER_PEER:  # They have one scope for all channels.
            pass
        case _ as never:
            assert_never(never)
    return tuple(each for each in found if each != scope) if scope in found else ()


def is_reachable(settings: Settings, scope: str) -> bool:
    """Return whether a message can get to a scope that exists, by the scopes and links of the settings."""
    rest = scope.split(":")[2:]
    session = settings.session
    if rest == ["main"]:
        return session.dm_scope is DmScope.MAIN
    if len(rest) < 2 or rest[0] in PROGRAM_CHANNELS:  # noqa: PLR2004 - not a key of ours, or that of a program.
        return True
    if rest[-2] != "direct":
        return (rest[-2] == "sender") is (session.group_scope is GroupScope.PER_SENDER)
    if _DM_SCOPES.get(len(rest)) is not session.dm_scope:
        return False
    # In `per-peer` the key has no channel, and a link of any channel counts.
    channel, person = (None if rest[0] == "direct" and len(rest) == 2 else rest[0]), rest[-1]  # noqa: PLR2004
    linked = [
        (name, *each.split(":", 1))
        for name, ids in session.identity_links.items()
        for each in ids
        if channel is None or each.startswith(f"{channel}:")
    ]
    if person.startswith("~"):
        return any(name == person[1:] for name, _, _ in linked)
    return not any(_encoded(peer) == person for _, _, peer in linked)


def _group_scope(settings: Settings, address: Address, sender: Sender) -> str:
    parts = [address.channel]
    # Session keys of single-account setups stay short, and stay the same when an account is added.
    if address.account != _DEFAULT_ACCOUNT:
        parts.append(address.account)
    parts += [address.kind.value, _encoded(address.peer)]
    if address.thread is not None:
        parts += ["thread", _encoded(address.thread)]
    if settings.session.group_scope is GroupScope.PER_SENDER:
        if not sender.id:
            raise Refused("This message has no sender ID, so I can't answer it here.")
        parts += ["sender", _encoded(sender.id)]
    return ":".join(parts)


def program_scope(agent: str, channel: str, peer: str) -> Routed:
    """Return the scope of a program's own session. It is isolated, whatever `dm_scope` says."""
    return Routed(agent=agent, scope=f"agent:{agent}:{channel}:direct:{_encoded(peer)}")


def channel_of(scope: str) -> str:
    """Return the channel of a scope; empty if the scope is shared by channels."""
    rest = scope.split(":")[2:]
    return rest[0] if len(rest) > 2 else ""  # noqa: PLR2004 - `main` has one part, `direct:<person>` two.


@lru_cache(maxsize=4_096)
def _encoded(platform_id: str) -> str:
    """Percent-encode separators. Lone surrogates are encoded as well, so that distinct ids stay distinct."""
    data = platform_id.encode("utf-8", "surrogatepass")
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in data)
