"""Intake: decides whether a message is taken and which session it belongs to, and commits it to the spool."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from weakref import WeakValueDictionary

import structlog
from msgspec.structs import replace

from gateway.access.guests import Person
from gateway.access.live import Live
from gateway.access.pairing import Strangers, Told
from gateway.access.rate_limit import FloodGate, Pace
from gateway.access.rules import is_owner, may_talk, rules_for
from gateway.aio import finish_before_cancel
from gateway.commands import APPROVE, COMMANDS, DENY, Answer, Asked, Call, Command, Desk, Kind, Mistyped, read
from gateway.commands.runner import Reply
from gateway.contract import Inbound, PeerKind, Quote, Verdict
from gateway.errors import ChannelError, GatehouseError, NotAccepted, Refused
from gateway.inbound.edits import Edits
from gateway.inbound.inbox import Queueing, taken
from gateway.inbound.recovery import TOO_OLD
from gateway.outbound.delivery import Delivery
from gateway.routing import Routed, route
from gateway.spool import Duplicate, Operation, Spool, SpoolBroken, SpoolFull
from gateway.text import clean, excerpt, split
from gateway.turns.approvals import Decision, parse_decision

log = structlog.get_logger()

TOO_FAST = (
    "That is too fast for me: I take {limit} messages a minute. This one was not taken; send it again in a while."
)


class Admission:
    """Asks who it is, whether it is meant for us, how fast they write and how old it is. A refusal is told once."""

    def __init__(self, live: Live, strangers: Strangers, *, now: Callable[[], datetime]) -> None:
        self._live = live
        self._strangers = strangers
        self._now = now
        self._started = now()
        self._flood = FloodGate()
        self._late = FloodGate()

    async def refusal(self, inbound: Inbound, tell: Told) -> Verdict | None:
        """Return None for what may come in."""
        if not may_talk(self._live, inbound.address, inbound.sender, inbound.guild):
            await self._strangers.turn_away(inbound, tell)
            return Verdict.REFUSED if inbound.address.kind is PeerKind.DIRECT else Verdict.IGNORED
        # An edit may have lost our name, and still concerns us.
        if not inbound.is_addressed and inbound.edits is None:
            return Verdict.IGNORED
        if await self._is_in_pace(inbound, tell) and await self._is_in_time(inbound, tell):
            return None
        return Verdict.REFUSED

    async def _is_in_pace(self, inbound: Inbound, tell: Told) -> bool:
        if is_owner(self._live, inbound.address, inbound.sender):
            return True
        limit = rules_for(self._live, inbound.address).rate_limit
        is_stop = inbound.text.lstrip()[1:5].lower() == "stop"
        # An edit is as new as it is, whenever its message was written.
        age = 0.0 if inbound.edits is not None else max(0.0, (self._now() - inbound.sent_at).total_seconds())
        person = Person.of(inbound.address, inbound.sender)
        pace = self._flood.pace(person, per_minute=limit, is_stop=is_stop, age=age)
        if pace is Pace.TOO_FAST:
            await tell(TOO_FAST.format(limit=limit), ())
        return pace is Pace.FINE

    async def _is_in_time(self, inbound: Inbound, tell: Told) -> bool:
        """Refuse what waited too long at its platform while we were away.

        What was said since our start is in time, whatever the clock has done meanwhile.
        """
        limit = self._live.settings.gateway.max_backlog_age
        is_backlog = inbound.edits is None and inbound.sent_at < self._started
        if not is_backlog or (self._now() - inbound.sent_at).total_seconds() <= limit:
            return True
        if self._late.pace(Person.of(inbound.address, inbound.sender), per_minute=1) is Pace.FINE:
            await tell(TOO_OLD, ())
        return False


NAME_WIDTH = 64
QUOTED = 4_000
"""Characters of a message that another answers to; the rest of a longer one is left out."""
NOT_UNDERSTOOD = "Something went wrong here with that message, so it was not taken. The operator finds why in the log."


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
        queueing: Queueing,
    ) -> None:
        self._live = live
        self._spool = spool
        self._sessions = desk.sessions
        self._delivery = delivery
        self._desk = desk
        self._admission = admission
        self._now = desk.now
        self._edits = Edits(spool, desk)
        self._queueing = queueing
        self._closed = False
        # What is accepted first is bound first; a scope's lock lives only while somebody waits for it.
        self._scopes: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def close(self) -> None:
        """Take nothing more; what comes now is told to come again."""
        self._closed = True

    async def deliver(self, inbound: Inbound) -> Verdict:
        if self._closed:
            raise NotAccepted("Gatehouse is shutting down. Send it again in a moment.")
        if not inbound.event_id:
            return Verdict.REFUSED
        try:
            verdict = await self._take(_marked(inbound))
        except Duplicate:
            verdict = Verdict.DUPLICATE
        except SpoolFull as full:
            raise NotAccepted(str(full)) from full
        except (ChannelError, SpoolBroken):
            raise
        except Exception:  # A platform would offer it again and again, and all that others write behind it would wait.
            log.exception("intake_crashed", channel=inbound.address.channel, chat=inbound.address.peer)
            verdict = await self._give_back(inbound)
        self._delivery.metrics.message_received(inbound.address, verdict)
        if verdict is not Verdict.ACCEPTED:
            tell = log.debug if verdict is Verdict.IGNORED else log.info  # Most of what is said in a busy group is.
            tell("message_not_taken", channel=inbound.address.channel, chat=inbound.address.peer, verdict=verdict)
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
        if inbound.edits is not None and await self._edits.apply(inbound, taken(inbound, self._now())):
            return Verdict.ACCEPTED
        if not inbound.is_addressed:
            return Verdict.IGNORED
        routed = route(self._live.settings, self._live.home(inbound.address), inbound.sender, inbound.guild)
        await self._act(inbound, routed)
        return Verdict.ACCEPTED

    async def _give_back(self, inbound: Inbound) -> Verdict:
        """Refuse a message that has met a bug, unless it was stored before; only who may talk here is told of it."""
        if not inbound.is_addressed or not may_talk(self._live, inbound.address, inbound.sender, inbound.guild):
            return Verdict.REFUSED
        try:
            await self._tell(inbound, NOT_UNDERSTOOD)
        except Duplicate:  # It will be answered, or is already.
            return Verdict.ACCEPTED
        return Verdict.REFUSED

    def _check_size(self, inbound: Inbound) -> None:
        limit = self._live.settings.gateway.max_message_chars
        if len(inbound.text) > limit:
            raise Refused(
                f"That message has {len(inbound.text):,} characters; at most {limit:,} fit. Send it in parts."
            )
        if not (inbound.text.strip() or inbound.attachments or inbound.quotes):
            raise Refused("That message was empty. Write something, or send /help.")

    async def _act(self, inbound: Inbound, routed: Routed) -> None:
        """Run a command now, in its order, or queue it; everything else is queued for the agent, as it was written."""
        match read(inbound.text, COMMANDS):
            case Mistyped(sentence):
                raise Refused(sentence)
            case Asked(command, argument) if command.kind is Kind.STRUCTURAL:
                async with self._scope(routed.scope):
                    await self._obey(command, argument, inbound, routed)
            case Asked(Command(kind=Kind.READING)) as asked if (
                session := self._sessions.active(routed.scope)
            ) is not None:
                async with self._scope(routed.scope):
                    await self._queueing.aside(inbound, routed, session, asked)
            case Asked(command, argument) if command.kind is not Kind.QUEUED:
                if await self._spool.was_seen(taken(inbound, self._now())):
                    raise Duplicate("A /stop that comes twice must not stop what was asked in between.")
                await self._obey(command, argument, inbound, routed)
            case Asked() as asked:
                async with self._scope(routed.scope):
                    await self._queueing.queue(inbound, routed, asked)
            case _:
                async with self._scope(routed.scope):
                    if (answer := self._as_answer(inbound, routed)) is not None:
                        await self._obey(*answer, inbound, routed)
                    else:
                        await self._queueing.message(inbound, routed)

    def _as_answer(self, inbound: Inbound, routed: Routed) -> tuple[Command, str] | None:
        """Read a plain yes or no, from somebody who may say so, as the answer to the question that is open here."""
        decision = parse_decision(inbound.text)
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
        """Run a command to its end: whoever called may have left, but what is stored of it is also told."""
        await finish_before_cancel(self._obeyed(command, argument, inbound, routed))

    async def _obeyed(self, command: Command, argument: str, inbound: Inbound, routed: Routed) -> None:
        """Run a command. What it changes and what it answers are one commit, made by the command or here."""
        reply = Reply(self._delivery, inbound, taken(inbound, self._now()))
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
            await self._settle(reply, answer)
        self._delivery.post(reply.parts)
        if answer.then is not None:
            answer.then()
        self._delivery.metrics.command_run(inbound.address.channel, command.name)
        log.info("command_handled", command=command.name, channel=inbound.address.channel, chat=inbound.address.peer)

    async def _settle(self, reply: Reply, answer: Answer) -> None:
        """Commit an answer; where that is refused, nothing of it has happened."""
        try:
            await self._spool.commit(*reply.operations(answer))
        except GatehouseError:
            if answer.otherwise is not None:
                answer.otherwise()
            raise

    async def _tell(self, inbound: Inbound, text: str, also: Sequence[Operation] = ()) -> None:
        """Answer with a sentence, and with `also` in the same commit."""
        await finish_before_cancel(self._told(inbound, Answer(text=text, also=tuple(also))))

    async def _told(self, inbound: Inbound, answer: Answer) -> None:
        reply = Reply(self._delivery, inbound, taken(inbound, self._now()))
        await self._settle(reply, answer)
        self._delivery.post(reply.parts)

    def _scope(self, scope: str) -> asyncio.Lock:
        return self._scopes.setdefault(scope, asyncio.Lock())


def _marked(inbound: Inbound) -> Inbound:
    """Return `inbound` as text that can be kept, and say whose words it is; a forwarded command is thus none."""
    text, quotes = clean(inbound.text), _readable(inbound.quotes)
    if inbound.forwarded_from is not None:
        text = f"[forwarded from {_named(inbound.forwarded_from)}] {text}"
    is_kept = text == inbound.text and quotes == inbound.quotes
    return inbound if is_kept else replace(inbound, text=text, quotes=quotes)


def _readable(quote: Quote | None) -> Quote | None:
    """Return as much of `quote` as is kept; None where nothing of it can be read: people can point at a blank."""
    parts = split(clean(quote.text), QUOTED) if quote is not None else ()
    return replace(quote, author=_named(quote.author), text=parts[0]) if quote is not None and parts else None


def _named(somebody: str) -> str:
    return excerpt(clean(somebody), NAME_WIDTH) or "somebody"
