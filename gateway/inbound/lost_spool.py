"""A spool that was missing, empty or damaged at the start: tells the operator, and the chats with unfinished turns."""

from dataclasses import dataclass
from uuid import uuid4

import structlog

from gateway.access.rules import Live, is_owner
from gateway.contract import Address, Outbound, PeerKind, Sender
from gateway.errors import Refused
from gateway.outbound.delivery import Delivery
from gateway.sessions import Entry, SessionManager, SessionMeta, TurnOutcome, entries, unfinished_message
from gateway.spool import LOST_SPOOL, SetFact, Spool
from gateway.text.plain import count

log = structlog.get_logger()

MAX_SESSIONS = 1_000
"""How many sessions are searched for unfinished turns, the most recently used ones first."""

RESEND = "My storage was damaged, so I may not have answered your last message. Please resend it."


@dataclass(frozen=True, slots=True, kw_only=True)
class LostSpool:
    """Reports the loss once. The transcripts show only turns that had started; messages that waited are lost."""

    live: Live
    spool: Spool
    sessions: SessionManager
    delivery: Delivery

    async def report(self) -> None:
        """Call this after the recovery of the work, and before any message comes in."""
        reason = (await self.spool.facts(LOST_SPOOL)).get(LOST_SPOOL)
        if reason is None:
            return
        self.spool.loss = (
            f"The spool was {reason} at a start, and a new one was made. Messages that waited, replies that were not "
            "sent, pairings and reminders may be lost."
        )
        everything = (meta for scope in self.sessions.scopes() for meta in self.sessions.list(scope))
        newest = sorted(everything, key=lambda meta: meta.last_accessed, reverse=True)[:MAX_SESSIONS]
        owner: Address | None = None
        told = 0
        for meta in newest:
            try:
                session = await self.sessions.load(meta.key)
                origin = await self._origin(meta)
            except (Refused, OSError):  # Damaged as well. Recovery has logged that.
                continue
            if origin is None:
                continue
            said = [entry for entry in session.entries if isinstance(entry, entries.User) and entry.sender]
            is_direct = origin.kind is PeerKind.DIRECT
            if owner is None and is_direct and said and is_owner(self.live, origin, Sender(id=said[-1].sender)):
                owner = origin
            unfinished = unfinished_message(session.entries)
            if unfinished is not None:
                await self._tell_sender(meta, origin, unfinished)
                told += 1
        log.error("spool_was_lost", reason=reason, chats_told=told, owner_told=owner is not None)
        notices = []
        if owner is not None:
            text = f"{self.spool.loss} I told {count(told, 'chat')} with an unfinished message. See the log for more."
            notices = self.delivery.compose(Outbound(address=owner, text=text), key=f"notice-{uuid4().hex}")
        # Together with the notice: after a crash before this line, the report starts again. Sessions that were told
        # have an end of their turn by then.
        await self.spool.commit(SetFact(name=LOST_SPOOL, value=None), *notices)
        self.delivery.post(notices)

    async def _origin(self, meta: SessionMeta) -> Address | None:
        """Return the chat in which a session began."""
        origin = await self.sessions.origin(meta.key)
        return None if origin is None else self.live.current_address(origin)

    async def _tell_sender(self, meta: SessionMeta, origin: Address, unfinished: entries.User) -> None:
        """End the turn in the transcript, and ask for the message again."""
        notice = Outbound(address=origin, text=RESEND, session=meta.number, is_failure=True)
        parts = self.delivery.compose(notice, key=f"notice-{uuid4().hex}")
        end: list[Entry] = [
            entries.System(content=RESEND, is_failure=True, turn=unfinished.turn),
            entries.TurnEnd(outcome=TurnOutcome.FAILED, turn=unfinished.turn),
        ]
        await self.sessions.append(meta.key, end, also=parts)
        self.delivery.post(parts)
