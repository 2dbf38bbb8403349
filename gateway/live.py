"""What holds now: the settings in force, which a reload replaces, the guest book, and chats that have moved."""

from dataclasses import dataclass, field

from msgspec.structs import replace

from config import ChannelSettings, Settings
from gateway.contract import Address
from gateway.pairing.guests import GuestBook

__all__ = ["Live"]


@dataclass(slots=True)
class Live:
    settings: Settings
    book: GuestBook = field(default_factory=GuestBook)
    homes: dict[Address, Address] = field(default_factory=dict)
    """Where chats were before their platform gave them another id."""
    _rules: tuple[Settings, dict[tuple[str, str], ChannelSettings]] | None = None

    def rules(self, channel: str, account: str) -> ChannelSettings:
        """Return the settings of one bot identity: asked several times for each message, so put together once."""
        if self._rules is None or self._rules[0] is not self.settings:
            self._rules = (self.settings, {})
        known = self._rules[1]
        if (channel, account) not in known:
            found = self.settings.channels.get(channel, ChannelSettings())
            known[channel, account] = found.for_account(account)
        return known[channel, account]

    def home(self, address: Address) -> Address:
        """Return where the conversation of `address` has begun: a chat that has moved keeps its conversation."""
        if not self.homes:
            return address
        before = self.homes.get(replace(address, thread=None))
        return address if before is None else replace(before, thread=address.thread)

    def whereabouts(self, address: Address) -> Address:
        """Return where the chat of an address of some time ago is now."""
        if not self.homes:
            return address
        home = replace(self.home(address), thread=None)
        moved = [new for new, before in self.homes.items() if before == home]
        return replace(moved[-1], thread=address.thread) if moved else address
