"""Edited messages: a waiting message is replaced. If the agent has seen it, the edit is added to the transcript."""

from collections.abc import Callable
from datetime import datetime, timedelta

from msgspec.structs import replace

from gateway.commands.parser import ParsedCommand, parse_message
from gateway.contract import Inbound
from gateway.errors import Refused
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.sessions import SessionManager, entries
from gateway.spool import Duplicate, MarkSeen, ReplaceInbound, Spool

MAX_AGE = timedelta(hours=48)
"""The spool may have dropped older messages."""


class MessageEdits:
    def __init__(
        self, spool: Spool, sessions: SessionManager, lanes: Lanes[Job], *, now: Callable[[], datetime]
    ) -> None:
        self._spool = spool
        self._sessions = sessions
        self._lanes = lanes
        self._now = now

    async def apply(self, inbound: Inbound) -> bool:
        """Apply an edit. Returns False if it has to be treated like a new message.

        That holds for an edit of a message that was never accepted (it may have lacked the bot's name), and for an
        edit from or into a command.
        """
        row = await self._spool.find_message(inbound.address, inbound.edits or "")
        if row is None:
            return self._now() - inbound.sent_at > MAX_AGE
        if row.inbound.sender.id != inbound.sender.id:
            return True  # Only the author of a message can change it.
        if any(isinstance(parse_message(each), ParsedCommand) for each in (inbound, row.inbound)):
            return False
        seen = MarkSeen.of(inbound, self._now())
        if await self._spool.was_seen(seen):
            raise Duplicate("This edit was seen before.")
        changed = replace(row.inbound, text=inbound.text)
        # If the message still waits, it is replaced in the lane and then in the spool. Its turn may start before the
        # commit below returns, but calls to the spool keep their order: the turn's first commit comes later.
        is_waiting = self._lanes.replace_waiting(
            row.session, lambda job: replace(job, inbound=changed) if job.turn == row.turn else job
        )
        if is_waiting:
            await self._spool.commit(seen, ReplaceInbound(turn=row.turn, inbound=changed), scope=row.scope)
            return True
        edit = entries.Edit(
            event_id=row.inbound.event_id,
            content=inbound.text,
            sender_name=inbound.sender.name,
            turn=row.answered_by or row.turn,
        )
        try:
            await self._sessions.append(row.session, [edit], also=[seen])
        except Refused:  # The session was deleted.
            await self._spool.commit(seen, scope=row.scope)
        return True
