"""Chats whose platform has given them another id: their conversation and their rights go on under the new one."""

from collections.abc import Mapping

import msgspec
import structlog
from msgspec.structs import replace

from gateway.contract import Address
from gateway.live import Live
from gateway.spool import Remember, Spool

__all__ = ["MOVES", "Moves"]

log = structlog.get_logger()

MOVES = "moved/"
"""What the names of these facts begin with."""
REMEMBERED = 10_000


class Moves:
    def __init__(self, live: Live, spool: Spool) -> None:
        self._live = live
        self._spool = spool

    def read(self, facts: Mapping[str, str]) -> None:
        for value in facts.values():
            new, home = msgspec.json.decode(value, type=tuple[Address, Address])
            self._live.homes[new] = home

    async def record(self, old: Address, new: Address) -> None:
        """Remember that `new` is what `old` was. The platform has said so, not somebody in the chat."""
        old, new = replace(old, thread=None), replace(new, thread=None)
        home = self._live.home(old)
        if new in self._live.homes or new == home or len(self._live.homes) >= REMEMBERED:
            return
        value = msgspec.json.encode((new, home)).decode()
        await self._spool.commit(Remember(name=f"{MOVES}{new.channel}/{new.account}/{new.peer}", value=value))
        self._live.homes[new] = home
        log.info("chat_moved", channel=new.channel, account=new.account, before=old.peer, chat=new.peer)
