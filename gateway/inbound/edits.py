"""Edited messages: one that still waits is changed, one that the agent has heard is followed by what it reads now."""

from datetime import timedelta

from msgspec.structs import replace

from gateway.commands import COMMANDS, Asked, Desk, read
from gateway.contract import Inbound
from gateway.errors import Refused
from gateway.sessions import entries
from gateway.spool import Duplicate, InboxRow, MarkSeen, ReplaceInbound, Spool

__all__ = ["Edits"]

FORGOTTEN_AFTER = timedelta(hours=48)
"""The spool may not know older messages any more."""


class Edits:
    def __init__(self, spool: Spool, desk: Desk) -> None:
        self._spool = spool
        self._desk = desk

    async def apply(self, inbound: Inbound, taken: MarkSeen) -> bool:
        """Have an edit take effect; return False for one that is to be taken like a new message.

        That is one of a message which we have not taken (it may have lacked our name), and one that makes or was a
        command.
        """
        row = await self._spool.find_message(inbound.address, inbound.edits or "")
        if row is None:
            return self._desk.now() - inbound.sent_at > FORGOTTEN_AFTER
        if row.inbound.sender.id != inbound.sender.id:
            return True  # Only who wrote a message can change it.
        if _is_command(inbound) or _is_command(row.inbound):
            return False
        if await self._spool.was_seen(taken):
            raise Duplicate("This edit has been seen.")
        if not await self._replaced(row, inbound, taken):
            await self._noted(row, inbound, taken)
        return True

    async def _replaced(self, row: InboxRow, inbound: Inbound, taken: MarkSeen) -> bool:
        """Change a message that waits, unless its turn has it already."""
        changed = replace(row.inbound, text=inbound.text)
        # What is changed here is committed before its turn can begin: calls to the spool keep their order.
        is_waiting = self._desk.lanes.replace_waiting(
            row.session, lambda job: replace(job, inbound=changed) if job.turn == row.turn else job
        )
        if is_waiting:
            await self._spool.commit(taken, ReplaceInbound(turn=row.turn, inbound=changed))
        return is_waiting

    async def _noted(self, row: InboxRow, inbound: Inbound, taken: MarkSeen) -> None:
        """Write the edit behind what was said, for the next turn to see."""
        edit = entries.Edit(
            event_id=row.inbound.event_id,
            content=inbound.text,
            sender_name=inbound.sender.name,
            turn=row.answered_by or row.turn,
        )
        try:
            await self._desk.sessions.append(row.session, [edit], also=[taken])
        except Refused:  # The session is gone, and with it whoever might have wanted to know.
            await self._spool.commit(taken)


def _is_command(inbound: Inbound) -> bool:
    return isinstance(read(inbound.text, COMMANDS), Asked)
