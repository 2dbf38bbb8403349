"""Chat migrations: a chat whose platform gives it another id keeps its conversation."""

from collections.abc import Mapping

import msgspec
import structlog
from msgspec.structs import replace

from gateway.access.rules import Live
from gateway.contract import Address
from gateway.errors import NotAccepted
from gateway.spool import SetFact, Spool, SpoolUnavailable

log = structlog.get_logger()

MIGRATION_FACTS = "moved/"
"""The prefix of the facts about moved chats."""
MAX_MIGRATIONS = 10_000


class ChatMigrations:
    """Fills `Live.first_addresses`, which routing uses, and stores it as facts in the spool."""

    def __init__(self, live: Live, spool: Spool) -> None:
        self._live = live
        self._spool = spool

    def read(self, facts: Mapping[str, str]) -> None:
        for name, value in facts.items():
            try:
                new, first = msgspec.json.decode(value, type=tuple[Address, Address])
            except msgspec.DecodeError:  # Written by a newer version.
                log.warning("chat_migration_unreadable", name=name)
            else:
                self._live.first_addresses[new] = first

    async def record(self, old: Address, new: Address) -> None:
        """Remember that the platform has replaced the address `old` by `new`."""
        old, new = replace(old, thread=None), replace(new, thread=None)
        # After a second move, the new address still leads to the first one, which the session keys contain.
        first = self._live.first_address(old)
        if new in self._live.first_addresses or new == first or len(self._live.first_addresses) >= MAX_MIGRATIONS:
            return
        value = msgspec.json.encode((new, first)).decode()
        try:
            await self._spool.commit(
                SetFact(name=f"{MIGRATION_FACTS}{new.channel}/{new.account}/{new.peer}", value=value)
            )
        except SpoolUnavailable as error:
            raise NotAccepted(str(error)) from error
        self._live.first_addresses[new] = first
        log.info("chat_moved", channel=new.channel, account=new.account, before=old.peer, chat=new.peer)
