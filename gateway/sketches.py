"""Sketches: which answers stand half written in their chats, so that each is brought to its final text."""

from collections.abc import Callable, Mapping
from datetime import datetime

from gateway.contract import Receipt
from gateway.spool import DropDraft, KeepDraft, Operation, OutboxRow, Spool

__all__ = ["Sketches"]


class Sketches:
    """By turn. The part of an answer that takes the place of its draft has the turn as its key."""

    def __init__(self, spool: Spool, now: Callable[[], datetime]) -> None:
        self._spool = spool
        self._now = now
        self._receipts: dict[str, Receipt | None] = {}
        """None until the platform has named the message."""
        self._lost: set[str] = set()
        """Turns whose draft may be in the chat, and cannot be named: after a crash, or when its outcome was lost."""

    def remember(self, found: Mapping[str, Receipt | None]) -> None:
        """Take over what was half streamed when the daemon ended."""
        self._receipts.update(found)
        self._lost.update(turn for turn, receipt in found.items() if receipt is None)

    async def keep(self, turn: str, receipt: Receipt | None) -> None:
        self._receipts[turn] = receipt
        await self._spool.commit(KeepDraft(turn=turn, receipt=receipt, at=self._now()))

    def lose(self, turn: str) -> None:
        """Note that a message may be in the chat which nobody can name."""
        self._lost.add(turn)

    def of_turn(self, turn: str) -> Receipt | None:
        return self._receipts.get(turn)

    def under(self, row: OutboxRow) -> Receipt | None:
        """Return the draft that `row` is the final text of."""
        return self._receipts.get(row.key) if row.key == row.turn else None

    def is_lost(self, row: OutboxRow) -> bool:
        """Tell whether a draft of `row` may stand in the chat for ever."""
        return row.key in self._lost

    def done(self, row: OutboxRow) -> list[Operation]:
        """Forget the draft of `row`, which has come to its end; return what is to be committed with that."""
        if row.key != row.turn or row.key not in self._receipts:
            return []
        del self._receipts[row.key]
        self._lost.discard(row.key)
        return [DropDraft(turn=row.key)]
