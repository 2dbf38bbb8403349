"""Intake: decides whether a message is taken and which session it belongs to, and commits it to the spool."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from random import Random
from uuid import uuid4
from weakref import WeakValueDictionary

import structlog

from config import BusyMode, WaitingSign
from gateway.access import is_owner, rules_for
from gateway.admission import Admission
from gateway.approvals import Decision, spoken_decision
from gateway.commands import APPROVE, COMMANDS, DENY, Answer, Asked, Call, Command, Desk, Kind, Mistyped, read
from gateway.contract import Inbound, Outbound, Verdict
from gateway.delivery import Delivery
from gateway.edits import Edits
from gateway.errors import Refused, Transient
from gateway.files.reception import Reception
from gateway.jobs import Job
from gateway.lanes import LaneFull
from gateway.live import Live
from gateway.replies import Reply
from gateway.routing import Routed, route
from gateway.sessions import SessionMeta
from gateway.signs import Signs
from gateway.spool import Accept, Duplicate, Operation, Send, Spool, Take
from gateway.text import clean, excerpt

__all__ = ["Intake"]

log = structlog.get_logger()

NAME_WIDTH = 64
WAITS = "One moment: this waits until I am done with what you sent before."
OTHERS_FIRST = "One moment: others are being answered first."
INTERRUPTED = "Interrupted by your next message."


class Intake:
    """`deliver` is what channels call; when it has returned, the message cannot be lost and may be acknowledged."""

    def __init__(
        self,
        *,
        live: Live,
        spool: Spool,
        delivery: Delivery,
        desk: Desk,
        admission: Admission,
        signs: Signs,
        files: Reception,
    ) -> None:
        self._live = live
        self._spool = spool
        self._sessions = desk.sessions
        self._lanes = desk.lanes
        self._delivery = delivery
        self._desk = desk
        self._admission = admission
        self._files = files
        self._now = desk.now
        self._edits = Edits(spool, desk)
        self._signs = signs
        self._random = Random()  # noqa: S311 - makes names that are unlike all others, not secrets
        self._closed = False
        # What is accepted first is bound first; a scope's lock lives only while somebody waits for it.
        self._scopes: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def close(self) -> None:
        """Take nothing more; what comes now is told to come again."""
        self._closed = True

    async def deliver(self, inbound: Inbound) -> Verdict:
        if self._closed:
            raise Transient("Gatehouse is shutting down; send it again in a moment.")
        if not inbound.event_id:
            return Verdict.REFUSED
        try:
            verdict = await self._take(_marked(inbound))
        except Duplicate:
            verdict = Verdict.DUPLICATE
        self._delivery.tally.came(inbound.address, verdict)
        if verdict is not Verdict.ACCEPTED:
            log.info("message_not_taken", channel=inbound.address.channel, chat=inbound.address.peer, verdict=verdict)
        return verdict

    async def _take(self, inbound: Inbound) -> Verdict:
        """Every way in leads through here: messages, edits, buttons, commands and files alike."""
        refused = await self._admission.refusal(inbound, partial(self._tell, inbound))
        if refused is not None:
            return refused
        try:
            return await self._accept(inbound)
        except Refused as refusal:
            await self._tell(inbound, str(refusal))
            return Verdict.REFUSED

    async def _accept(self, inbound: Inbound) -> Verdict:
        self._check_size(inbound)
        if inbound.edits is not None and await self._edits.apply(inbound, _taken(inbound, self._now())):
            return Verdict.ACCEPTED
        if not inbound.is_addressed:
            return Verdict.IGNORED
        routed = route(self._live.settings, self._live.home(inbound.address), inbound.sender, inbound.guild)
        await self._act(inbound, routed)
        return Verdict.ACCEPTED

    def _check_size(self, inbound: Inbound) -> None:
        limit = self._live.settings.gateway.max_message_chars
        if len(inbound.text) > limit:
            raise Refused(
                f"That message has {len(inbound.text):,} characters; at most {limit:,} fit. Send it in parts."
            )
        if not inbound.text.strip() and not inbound.attachments:
            raise Refused("That message was empty. Write something, or send /help.")

    async def _act(self, inbound: Inbound, routed: Routed) -> None:
        """Run a command now, in its order, or queue it; everything else is queued for the agent, as it was written."""
        match read(inbound.text, COMMANDS):
            case Mistyped(sentence):
                raise Refused(sentence)
            case Asked(command, argument) if command.kind is Kind.STRUCTURAL:
                async with self._scope(routed.scope):
                    await self._obey(command, argument, inbound, routed)
            case Asked(command, argument) if command.kind is Kind.LOOK:
                if await self._spool.was_taken(_taken(inbound, self._now())):
                    raise Duplicate("A /stop that comes twice must not stop what was asked in between.")
                await self._obey(command, argument, inbound, routed)
            case _:
                async with self._scope(routed.scope):
                    if (answer := self._as_answer(inbound, routed)) is not None:
                        await self._obey(*answer, inbound, routed)
                    else:
                        await self._queue(inbound, routed)

    def _as_answer(self, inbound: Inbound, routed: Routed) -> tuple[Command, str] | None:
        """Read a plain yes or no, from somebody who may say so, as the answer to the question that is open here."""
        decision = spoken_decision(inbound.text)
        if decision is None or inbound.attachments:
            return None
        active = self._sessions.active(routed.scope)
        if active is None:
            return None
        is_an_owner = is_owner(self._live, inbound.address, inbound.sender)
        question = self._desk.approvals.heard(inbound, active.key, is_owner=is_an_owner)
        if question is None:
            return None
        return (APPROVE if decision is Decision.APPROVED else DENY), question.id

    async def _obey(self, command: Command, argument: str, inbound: Inbound, routed: Routed) -> None:
        """Run a command. What it changes and what it answers are one commit, made by the command or here."""
        reply = Reply(self._delivery, inbound, _taken(inbound, self._now()))
        active = self._sessions.active(routed.scope)
        call = Call(
            inbound=inbound,
            routed=routed,
            session=active.key if active else None,
            argument=argument,
            is_owner=is_owner(self._live, inbound.address, inbound.sender),
            desk=self._desk,
            settle=reply.operations,
        )
        answer = await command.run(call)
        if not reply.parts:
            await self._spool.commit(*reply.operations(answer))
        self._delivery.post(reply.parts)
        if answer.then is not None:
            answer.then()
        self._delivery.tally.commanded(inbound.address.channel, command.name)
        log.info("command_handled", command=command.name, channel=inbound.address.channel, chat=inbound.address.peer)

    async def _tell(self, inbound: Inbound, text: str, also: Sequence[Operation] = ()) -> None:
        """Answer with a sentence, and with `also` in the same commit."""
        reply = Reply(self._delivery, inbound, _taken(inbound, self._now()))
        await self._spool.commit(*reply.operations(Answer(text=text, also=tuple(also))))
        self._delivery.post(reply.parts)

    async def _queue(self, inbound: Inbound, routed: Routed) -> None:
        """Commit the message, bound to the scope's active session, and put it into that session's lane."""
        turn, now = self._new_turn(), self._now()
        note: list[Send] = []

        def accept(session: SessionMeta) -> Sequence[Operation]:
            self._check_room(session.key)
            note.extend(self._note(inbound, session.key))
            return [
                _taken(inbound, now),
                Accept(
                    turn=turn,
                    inbound=inbound,
                    scope=routed.scope,
                    session=session.key,
                    number=session.number,
                    agent=routed.agent,
                    at=now,
                ),
                *note,
            ]

        session = await self._sessions.resolve_active(
            routed.scope, agent=routed.agent, origin=inbound.address, also=accept
        )
        if self._why_it_waits(inbound, session.key, WaitingSign.REACTION):
            self._signs.waits(turn, inbound)
        if self._live.settings.channels[inbound.address.channel].busy is BusyMode.INTERRUPT:
            self._lanes.stop(session.key, INTERRUPTED)
        job = Job(
            turn=turn,
            inbound=inbound,
            agent=routed.agent,
            scope=routed.scope,
            session=session.key,
            number=session.number,
        )
        self._files.begin(job)
        self._lanes.put(session.key, job)
        self._delivery.post(note)

    def _new_turn(self) -> str:
        """Return a name of a turn. Asking the system for each one's chance costs more than all else that is done."""
        return f"{self._random.getrandbits(128):032x}"

    def _why_it_waits(self, inbound: Inbound, session: str, sign: WaitingSign) -> str | None:
        """Say why a message has to wait, if it has to and its sender shall learn it by this sign."""
        rules = rules_for(self._live, inbound.address)
        if rules.waiting_sign is not sign:
            return None
        if self._lanes.is_busy(session):
            return None if rules.busy is BusyMode.INTERRUPT else WAITS
        return OTHERS_FIRST if self._lanes.at_work >= self._live.settings.gateway.max_parallel_turns else None

    def _note(self, inbound: Inbound, session: str) -> list[Send]:
        why = self._why_it_waits(inbound, session, WaitingSign.NOTE)
        if why is None:
            return []
        notice = Outbound(address=inbound.address, text=why, reply_to=inbound.message_id)
        return self._delivery.compose(notice, key=f"notice-{uuid4().hex}")

    def _check_room(self, session: str) -> None:
        try:
            self._lanes.check_room(session)
        except LaneFull as full:
            raise Refused(
                f"{full.waiting} messages are already waiting for an answer. "
                "Wait for some of them, or send /stop to drop those of this chat."
            ) from full

    def _scope(self, scope: str) -> asyncio.Lock:
        return self._scopes.setdefault(scope, asyncio.Lock())


def _marked(inbound: Inbound) -> Inbound:
    """Return `inbound` as text that can be kept, and say whose words it is; a forwarded command is thus none."""
    text = clean(inbound.text)
    if inbound.forwarded_from is not None:
        who = excerpt(clean(inbound.forwarded_from), NAME_WIDTH) or "somebody"
        text = f"[forwarded from {who}] {text}"
    return inbound if text == inbound.text else replace(inbound, text=text)


def _taken(inbound: Inbound, now: datetime) -> Take:
    address = inbound.address
    return Take(channel=address.channel, account=address.account, event_id=inbound.event_id, at=now)
