"""The access policy in force: the settings, which a reload replaces, the guest book, and chats that have moved."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import structlog
from msgspec.structs import replace

from config import ChannelSettings, Settings
from gateway.access.guests import GuestBook
from gateway.contract import Address
from gateway.errors import NotAccepted
from gateway.spool import SetFact, Spool, SpoolFull

log = structlog.get_logger()


@dataclass(slots=True)
class Live:
    settings: Settings
    book: GuestBook = field(default_factory=GuestBook)
    homes: dict[Address, Address] = field(default_factory=dict)
    """The first address of each chat that its platform has given another id."""
    _rules: tuple[Settings, dict[tuple[str, str], ChannelSettings]] | None = None

    def rules(self, channel: str, account: str) -> ChannelSettings:
        """Return the settings of one bot identity. Cached, since each message asks several times."""
        if self._rules is None or self._rules[0] is not self.settings:
            self._rules = (self.settings, {})
        known = self._rules[1]
        if (channel, account) not in known:
            found = self.settings.channels.get(channel, ChannelSettings())
            known[channel, account] = found.for_account(account)
        return known[channel, account]

    def home(self, address: Address) -> Address:
        """Return the first address of the chat of `address`. A chat that has moved keeps its conversation."""
        if not self.homes:
            return address
        before = self.homes.get(replace(address, thread=None))
        return address if before is None else replace(before, thread=address.thread)

    def whereabouts(self, address: Address) -> Address:
        """Return the current address of the chat that had `address` some time ago."""
        if not self.homes:
            return address
        home = replace(self.home(address), thread=None)
        moved = [new for new, before in self.homes.items() if before == home]
        return replace(moved[-1], thread=address.thread) if moved else address


MIGRATION_FACTS = "moved/"
"""The prefix of the facts about moved chats."""
MAX_MIGRATIONS = 10_000


class ChatMigrations:
    """Keeps the conversation of a chat whose platform gives it another id."""

    def __init__(self, live: Live, spool: Spool) -> None:
        self._live = live
        self._spool = spool

    def read(self, facts: Mapping[str, str]) -> None:
        for value in facts.values():
            new, home = msgspec.json.decode(value, type=tuple[Address, Address])
            self._live.homes[new] = home

    async def record(self, old: Address, new: Address) -> None:
        """Remember that the platform has replaced the address `old` by `new`."""
        old, new = replace(old, thread=None), replace(new, thread=None)
        home = self._live.home(old)
        if new in self._live.homes or new == home or len(self._live.homes) >= MAX_MIGRATIONS:
            return
        value = msgspec.json.encode((new, home)).decode()
        try:
            await self._spool.commit(
                SetFact(name=f"{MIGRATION_FACTS}{new.channel}/{new.account}/{new.peer}", value=value)
            )
        except SpoolFull as full:
            raise NotAccepted(str(full)) from full
        self._live.homes[new] = home
        log.info("chat_moved", channel=new.channel, account=new.account, before=old.peer, chat=new.peer)
