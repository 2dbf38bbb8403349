"""Queueing: an accepted message is committed to the spool, bound to a session, and put into that session's lane."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from random import Random
from time import time_ns
from uuid import uuid4

from config import BusyMode, WaitingSign
from gateway.access.live import Live
from gateway.access.rules import rules_for
from gateway.commands import Asked, Desk
from gateway.contract import Inbound, Outbound
from gateway.errors import Refused
from gateway.files.download import AttachmentDownloads
from gateway.job import Job
from gateway.lanes import LaneFull, Lanes
from gateway.outbound.delivery import Delivery
from gateway.outbound.reactions import WaitingReactions
from gateway.routing import Routed
from gateway.sessions import SessionMeta
from gateway.spool import AddToInbox, AddToOutbox, MarkSeen, Operation, Spool
from gateway.turns.state import user_entry

__all__ = ["Queueing", "taken"]

WAITS = "One moment: this waits until I am done with what you sent before."
OTHERS_FIRST = "One moment: others are being answered first."
INTERRUPTED = "Interrupted by your next message."


class Queueing:
    """Whoever calls may be cancelled at any time: what the spool has is in its lane all the same.

    They leave only once that is known, so that whoever comes behind them finds it there.
    """

    def __init__(
        self,
        *,
        live: Live,
        spool: Spool,
        desk: Desk,
        delivery: Delivery,
        signs: WaitingReactions,
        files: AttachmentDownloads,
    ) -> None:
        self._live = live
        self._spool = spool
        self._sessions = desk.sessions
        self._lanes = desk.lanes
        self._readings = desk.readings
        self._now = desk.now
        self._delivery = delivery
        self._signs = signs
        self._files = files
        self._random = Random()  # noqa: S311 - makes names that are unlike all others, not secrets

    async def message(self, inbound: Inbound, routed: Routed) -> None:
        """Queue what is said to the agent; where nothing stands before it, its turn is begun in the same commit."""
        session = self._sessions.open_one(routed.scope)
        is_free = session is not None and not inbound.attachments and self._has_place
        if session is None or not is_free or not self._lanes.reserve(session.key):
            await self.queue(inbound, routed)
            return
        try:
            await self._begin(inbound, routed, session)
        except asyncio.CancelledError:
            await self._spool.drain()
            raise
        finally:
            self._lanes.release(session.key)

    def _new_turn(self) -> str:
        """Return a name unlike all others. It begins with the time: neighbours in the spool's indexes are cheap.

        Asking the system for each one's chance would cost more than all else that is done.
        """
        return f"{time_ns() >> 10:014x}{self._random.getrandbits(72):018x}"

    @property
    def _has_place(self) -> bool:
        """Whether a turn that is started now need not wait for others to end."""
        return self._lanes.busy_count < self._live.settings.gateway.max_parallel_turns

    async def _begin(self, inbound: Inbound, routed: Routed, session: SessionMeta) -> None:
        accept = self._acceptance(inbound, routed, session, is_started=True)
        asked = user_entry(inbound, turn=accept.turn)
        job = _job(accept)
        await self._sessions.append(
            session.key,
            [asked],
            also=[taken(inbound, accept.at), accept],
            then=partial(self._lanes.put_reserved, session.key, job),
        )

    async def queue(self, inbound: Inbound, routed: Routed, asked: Asked | None = None) -> None:
        """Queue a message, or a command that waits for the turns before it, in the session that is active then."""
        accepted: list[AddToInbox] = []
        note: list[AddToOutbox] = []

        def accept(session: SessionMeta) -> Sequence[Operation]:
            _check_room(self._lanes, session.key)
            note.extend(self._note(inbound, session.key))
            accepted.append(self._acceptance(inbound, routed, session))
            return [taken(inbound, accepted[0].at), *accepted, *note]

        try:
            await self._sessions.resolve_active(
                routed.scope,
                agent=routed.agent,
                origin=inbound.address,
                also=accept,
                then=lambda: self._put(_job(accepted[0], asked), note),
            )
        except asyncio.CancelledError:
            await self._spool.drain()
            raise

    async def aside(self, inbound: Inbound, routed: Routed, session: SessionMeta, asked: Asked) -> None:
        """Queue a command that reads transcripts, beside the turns; it is about `session`, and starts none."""
        _check_room(self._readings, routed.scope)
        accept = self._acceptance(inbound, routed, session)

        def put(refusal: BaseException | None) -> None:
            if refusal is None:
                self._readings.put(routed.scope, _job(accept, asked))

        await self._spool.commit(taken(inbound, accept.at), accept, on_done=put)

    def _put(self, job: Job, note: Sequence[AddToOutbox]) -> None:
        inbound = job.inbound
        if self._why_it_waits(inbound, job.session, WaitingSign.REACTION):
            self._signs.add(job.turn, inbound)
        if self._live.settings.channels[inbound.address.channel].busy is BusyMode.INTERRUPT:
            self._lanes.stop(job.session, INTERRUPTED)
        if job.inbound.attachments:
            self._files.start(job)
        self._lanes.put(job.session, job)
        self._delivery.post(note)

    def _acceptance(
        self, inbound: Inbound, routed: Routed, session: SessionMeta, *, is_started: bool = False
    ) -> AddToInbox:
        return AddToInbox(
            turn=self._new_turn(),
            inbound=inbound,
            scope=routed.scope,
            session=session.key,
            number=session.number,
            agent=routed.agent,
            at=self._now(),
            is_started=is_started,
        )

    def _why_it_waits(self, inbound: Inbound, session: str, sign: WaitingSign) -> str | None:
        """Say why a message has to wait, if it has to and its sender shall learn it by this sign."""
        rules = rules_for(self._live, inbound.address)
        if rules.waiting_sign is not sign:
            return None
        if self._lanes.is_busy(session):
            return None if rules.busy is BusyMode.INTERRUPT else WAITS
        return None if self._has_place else OTHERS_FIRST

    def _note(self, inbound: Inbound, session: str) -> list[AddToOutbox]:
        why = self._why_it_waits(inbound, session, WaitingSign.NOTE)
        if why is None:
            return []
        notice = Outbound(address=inbound.address, text=why, reply_to=inbound.message_id)
        return self._delivery.compose(notice, key=f"notice-{uuid4().hex}")


def _check_room(lanes: Lanes[Job], key: str) -> None:
    try:
        lanes.check_room(key)
    except LaneFull as full:
        raise Refused(
            f"{full.waiting} messages are already waiting for an answer. "
            "Wait for some of them, or send /stop to drop those of this chat."
        ) from full


def taken(inbound: Inbound, now: datetime) -> MarkSeen:
    """Return the mark that keeps the same event from being taken twice."""
    address = inbound.address
    return MarkSeen(channel=address.channel, account=address.account, event_id=inbound.event_id, at=now)


def _job(accept: AddToInbox, asked: Asked | None = None) -> Job:
    return Job(
        turn=accept.turn,
        inbound=accept.inbound,
        agent=accept.agent,
        scope=accept.scope,
        session=accept.session,
        number=accept.number,
        command=asked.command.name if asked else None,
        argument=asked.argument if asked else "",
        has_begun=accept.is_started,
    )
