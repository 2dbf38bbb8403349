"""Intake: checks each message that a channel delivers, and accepts it, runs it as a command, or refuses it.

A message that the platform delivers twice is a `Duplicate`: see `MarkSeen` in `gateway/spool/operations.py`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from time import time_ns

import structlog
from msgspec.structs import replace

from gateway.access.guests import Person
from gateway.access.owner_chats import OwnerChats
from gateway.access.pairing import UnknownSenders
from gateway.access.rate_limit import MINUTE, RateCheck, RateLimiter
from gateway.access.role_table import Role
from gateway.access.roles import role_in
from gateway.access.rules import Live, is_allowed, is_owner, may_talk
from gateway.aio import KeyedLocks
from gateway.commands.agents import split_agent, starts_session
from gateway.commands.command import Call, CommandKind, is_number
from gateway.commands.parser import ParsedCommand, UnknownCommand, parse_message
from gateway.commands.registry import AGENT, APPROVE, DENY, RETRY
from gateway.commands.runner import CommandRunner
from gateway.commands.sessions import parse_new
from gateway.contract import Arrival, Inbound, PeerKind, Verdict
from gateway.errors import ChannelError, HeldElsewhere, NotAccepted, RateLimited, Refused
from gateway.inbound.edits import MessageEdits
from gateway.inbound.inbox import Inbox
from gateway.inbound.recovery import TOO_OLD
from gateway.job import ApartSession, Job
from gateway.metrics import Metrics
from gateway.placement import Placement
from gateway.repos.repositories import Repositories
from gateway.routing import Routed, route
from gateway.sessions import SessionManager, SessionMeta
from gateway.sessions.keys import session_key
from gateway.spool import (
    AddArrival,
    ArrivalsWaiting,
    DropArrival,
    Duplicate,
    MarkSeen,
    Operation,
    Spool,
    SpoolBroken,
    SpoolUnavailable,
)
from gateway.text import clean, excerpt, split
from gateway.turns.approvals import Approvals, parse_decision
from gateway.turns.question import Decision

log = structlog.get_logger()

RATE_LIMITED = "That's too fast for me: the limit is {limit} messages a minute. Please resend this one a bit later."
CRASHED = "I couldn't process that message because of an internal error. The bot's operator can find it in the log."
NAME_WIDTH = 64
MAX_QUOTE = 4_000
"""Characters that are kept of a quoted message."""


class Intake:
    """Channels call `deliver`. When it returns, the message cannot be lost and may be acknowledged."""

    def __init__(  # noqa: PLR0913 - it needs them all.
        self,
        *,
        live: Live,
        spool: Spool,
        sessions: SessionManager,
        inbox: Inbox,
        edits: MessageEdits,
        commands: CommandRunner,
        approvals: Approvals,
        unknown_senders: UnknownSenders,
        owner_chats: OwnerChats,
        repos: Repositories,
        placement: Placement,
        metrics: Metrics,
        now: Callable[[], datetime],
        catch_up: Callable[[str], Awaitable[bool]] | None = None,
    ) -> None:
        """`catch_up` is for a cluster: it accepts the messages of a scope that other nodes have passed on.

        It returns False if they wait for another node.
        """
        self._live = live
        self._spool = spool
        self._sessions = sessions
        self._catch_up = catch_up
        self._inbox = inbox
        self._edits = edits
        self._commands = commands
        self._approvals = approvals
        self._unknown_senders = unknown_senders
        self._owner_chats = owner_chats
        self._repos = repos
        self._placement = placement
        self._metrics = metrics
        self._now = now
        self._started_at = now()
        self._rate_limiter = RateLimiter()
        self._backlog_answers = RateLimiter()
        self._is_closed = False
        # Messages of a scope are accepted one after the other.
        self._scopes = KeyedLocks()

    def close(self) -> None:
        """Accept nothing more: `deliver` raises `NotAccepted` from now on."""
        self._is_closed = True

    async def deliver(self, inbound: Inbound) -> Verdict:
        if self._is_closed and self._spool.shards is None:
            raise NotAccepted("I'm shutting down. Please resend this in a moment.")
        if not inbound.event_id:  # It could not be recognised if the platform repeats it.
            return Verdict.REFUSED
        address, elsewhere = inbound.address, inbound.answer_address
        if elsewhere is not None:
            inbound = replace(inbound, answer_address=self._live.current_address(elsewhere))
        try:
            verdict = await self._take(inbound)
        except Duplicate:
            verdict = Verdict.DUPLICATE
        except SpoolUnavailable as error:
            raise NotAccepted(str(error)) from error
        except (ChannelError, SpoolBroken, HeldElsewhere):
            raise
        except Exception:  # The platform would send it again and again, and hold up the messages behind it.
            log.exception("intake_crashed", channel=address.channel, chat=address.peer)
            if inbound.sender.is_verified:
                raise NotAccepted(CRASHED) from None
            verdict = Verdict.REFUSED
            if inbound.is_addressed and may_talk(self._live, address, inbound.sender, inbound.guild):
                try:
                    await self._commands.reply(inbound, CRASHED)
                except Duplicate:  # It was committed before the crash, so it will be answered.
                    verdict = Verdict.ACCEPTED
        self._metrics.message_received(address, verdict)
        if verdict is not Verdict.ACCEPTED:
            # Most messages of a busy group are not for the bot.
            report = log.debug if verdict is Verdict.IGNORED else log.info
            report("message_rejected", channel=address.channel, chat=address.peer, verdict=verdict)
        return verdict

    async def _take(self, inbound: Inbound) -> Verdict:
        """Accept a message of a channel; in a cluster, at any node.

        1. A node that does not own the scope of the message stores it as an arrival. The owner of the scope gets it by
           `deliver` as well, with its position, and all checks happen there.
        2. The owner accepts its own messages as a single gateway does, but not before the arrivals of the scope.
        3. The scope may change hands in the middle. Then nothing was stored, and the message becomes an arrival.
        """
        address, arrival, shards = inbound.address, inbound.arrival, self._spool.shards
        cleaned = _cleaned(inbound) if arrival is None else inbound
        if shards is None or self._catch_up is None:
            return await self._check(cleaned)
        if not inbound.is_addressed and inbound.edits is None:
            return Verdict.IGNORED
        if address.kind is not PeerKind.DIRECT and not may_talk(self._live, address, inbound.sender, inbound.guild):
            return Verdict.IGNORED
        try:
            scope = route(self._live.settings, self._live.first_address(address), inbound.sender, inbound.guild).scope
        except Refused as refusal:
            if inbound.sender.is_verified:
                raise NotAccepted(str(refusal)) from refusal
            return Verdict.REFUSED
        now = self._now()
        if arrival is not None:
            if arrival.scope == scope:
                return await self._check(cleaned)
            # The settings of the nodes differ, or have changed since. It arrives again, at the owner of its scope.
            again = AddArrival(scope=scope, inbound=replace(inbound, arrival=None), at=now)
            await self._spool.commit(DropArrival(arrival=arrival), again, scope=arrival.scope)
            return Verdict.ACCEPTED
        while shards.serves(scope):
            try:
                return await self._check(replace(cleaned, arrival=Arrival(scope=scope)))
            except ArrivalsWaiting:
                if not await self._catch_up(scope):
                    break
            except HeldElsewhere:
                break
        await self._spool.commit(MarkSeen.of(inbound, now), AddArrival(scope=scope, inbound=cleaned, at=now))
        return Verdict.ACCEPTED

    async def accept_prompt(
        self, inbound: Inbound, routed: Routed, *, into: str | None = None, also: Sequence[Operation] = ()
    ) -> Job:
        """Accept the message of a program, whose access has been checked. When this returns, it cannot be lost.

        It goes into the session with the key `into`, or else into the active session of its scope. `also` is committed
        with it. Raises `Refused`, `Duplicate`, or `NotAccepted` if the program may try again later.
        """
        received = time_ns()
        if self._spool.shards is not None:
            if not self._spool.shards.serves(routed.scope):
                raise HeldElsewhere(routed.scope)
        elif self._is_closed:
            raise NotAccepted("The gateway is shutting down. Try again in a moment.")
        inbound = _cleaned(inbound)
        self._check_text(inbound)
        try:
            async with self.locked(routed.scope):
                if self._placement.is_used and (session := self._sessions.find(into or "")) is not None:
                    await self._placement.require_now(routed.scope, self._placement.needed_by(session))
                job = await self._inbox.accept(inbound, routed, into=into, also=also, received=received)
        except SpoolUnavailable as error:
            raise NotAccepted(str(error)) from error
        self._metrics.message_received(inbound.address, Verdict.ACCEPTED)
        return job

    async def accept_scheduled(
        self,
        inbound: Inbound,
        routed: Routed,
        apart: ApartSession | None,
        record: Callable[[str], Sequence[Operation]],
    ) -> Job:
        """Accept the message of a schedule, whose rights have been checked. When this returns, it cannot be lost.

        It goes into the session that is `apart`, or else into the active one of its scope. What `record` returns for
        the key of that session is committed with it. Raises as `accept_prompt`.
        """
        received = time_ns()
        if self._spool.shards is not None:
            if not self._spool.shards.serves(routed.scope):
                raise HeldElsewhere(routed.scope)
        elif self._is_closed:
            raise NotAccepted("The gateway is shutting down.")
        inbound = _cleaned(inbound)
        self._check_text(inbound)
        try:
            async with self.locked(routed.scope):
                if self._placement.is_used:
                    await self._placement.require(routed.scope, self._placement.needed(routed.agent))
                job = await self._inbox.accept(inbound, routed, apart=apart, record=record, received=received)
        except SpoolUnavailable as error:
            raise NotAccepted(str(error)) from error
        self._metrics.message_received(inbound.address, Verdict.ACCEPTED)
        return job

    @asynccontextmanager
    async def locked(self, scope: str) -> AsyncIterator[None]:
        """Accept no message into a scope while inside. One whose commit is under way is in its lane before."""
        await self._scopes.acquire(scope)
        try:
            yield
        finally:
            self._scopes.release(scope)

    def _check_text(self, inbound: Inbound) -> None:
        """Raise `Refused` for a message that is too long or empty."""
        max_chars = self._live.settings.gateway.max_message_chars
        if len(inbound.text) > max_chars:
            raise Refused(
                f"That message has {len(inbound.text):,} characters; the limit is {max_chars:,}. Send it in parts."
            )
        if not (inbound.text.strip() or inbound.attachments or inbound.quotes):
            raise Refused("That message was empty. Write something, or send /help.")

    async def _check(self, inbound: Inbound) -> Verdict:
        """Check access, rate and age, and accept what passes. A refusal is answered once.

        For a program, a refusal is raised instead, and its event is not marked as seen. So it can send that again.
        """
        address, sender = inbound.address, inbound.sender
        reply = partial(self._commands.reply, inbound)
        owner = is_owner(self._live, address, sender)
        if not owner and not is_allowed(self._live, address, sender, inbound.guild):
            if address.kind is not PeerKind.DIRECT:
                return Verdict.IGNORED
            await self._unknown_senders.answer(inbound, partial(reply, is_unknown=True))
            return Verdict.REFUSED
        # An edit may have removed the bot's name from a message, and still concerns it.
        is_edit = inbound.edits is not None
        if not inbound.is_addressed and not is_edit:
            return Verdict.IGNORED
        # `sent_at` of an edit is the time of the first version, so its age means nothing.
        age = 0.0 if is_edit else max(0.0, (self._now() - inbound.sent_at).total_seconds())
        # Owners have no rate limit.
        if not owner:
            limit = self._live.rules(address).rate_limit
            is_stop = inbound.text.lstrip()[1:5].lower() == "stop"
            rate = self._rate_limiter.check(Person.of(address, sender), per_minute=limit, is_stop=is_stop, age=age)
            if rate is not RateCheck.ALLOWED:
                if sender.is_verified:
                    raise RateLimited(RATE_LIMITED.format(limit=limit), retry_after=MINUTE / limit)
                if rate is RateCheck.LIMITED:
                    await reply(RATE_LIMITED.format(limit=limit))
                return Verdict.REFUSED
        # Only messages from before the start can be too old. So a clock that jumps refuses nothing that comes in now.
        is_backlog = not is_edit and inbound.sent_at < self._started_at
        if is_backlog and age > self._live.settings.gateway.max_backlog_age:
            if self._backlog_answers.check(Person.of(address, sender), per_minute=1) is RateCheck.ALLOWED:
                await reply(TOO_OLD)
            return Verdict.REFUSED
        try:
            verdict = await self._accept(inbound, owner=owner)
        except Refused as refusal:
            if sender.is_verified:
                raise NotAccepted(str(refusal)) from refusal
            await reply(str(refusal))
            return Verdict.REFUSED
        # After the message is safe: the chat can be noted with the next one too.
        if owner and address.kind is PeerKind.DIRECT and (address, sender.id) not in self._owner_chats.known:
            await self._owner_chats.note(address, sender)
        return verdict

    async def _accept(self, inbound: Inbound, *, owner: bool) -> Verdict:
        """Run an immediate command, and put everything else into the inbox. Raises `Refused`."""
        received = time_ns()
        self._check_text(inbound)
        if inbound.edits is not None and await self._edits.apply(inbound):
            return Verdict.ACCEPTED
        if not inbound.is_addressed:
            return Verdict.IGNORED
        routed = route(self._live.settings, self._live.first_address(inbound.address), inbound.sender, inbound.guild)
        parsed = parse_message(inbound)
        if isinstance(parsed, UnknownCommand):
            raise Refused(parsed.suggestion)
        if parsed is not None and parsed.command.kind is CommandKind.IMMEDIATE:
            # Checked before the command runs: a /stop that comes twice must not stop a newer turn.
            if await self._spool.was_seen(MarkSeen.of(inbound, self._now())):
                raise Duplicate("This command was seen before.")
            await self._run_now(parsed, inbound, routed, owner=owner)
            return Verdict.ACCEPTED
        await self._scopes.acquire(routed.scope)
        try:
            # A prompt is no answer: otherwise a webhook could approve what it has asked for itself.
            is_plain = parsed is None and not inbound.attachments and not inbound.is_prompt
            decision = parse_decision(inbound.text) if is_plain and self._approvals.open_questions else None
            if decision is not None and (active := self._sessions.active(routed.scope)) is not None:
                # A plain yes or no is the answer to a question that is open in this chat.
                question = self._approvals.find_in_chat(inbound, active.key, is_owner=owner)
                if question is not None:
                    parsed = ParsedCommand(APPROVE if decision is Decision.APPROVED else DENY, question.id)
            if self._placement.is_used:
                await self._placement.require(routed.scope, self._needed(routed, parsed, role_in(self._live, inbound)))
            kind = parsed.command.kind if parsed is not None else None
            active = self._sessions.active(routed.scope)
            has_nothing_to_read = kind is CommandKind.READING and active is None
            is_ordered = kind is CommandKind.ORDERED
            if parsed is not None and parsed.command is AGENT:
                current = routed.agent if active is None else active.agent
                is_ordered = starts_session(self._repos, parsed.argument, current)
            if parsed is not None and (is_ordered or has_nothing_to_read):
                await self._run_now(parsed, inbound, routed, owner=owner)
            else:
                await self._inbox.accept(inbound, routed, parsed, received=received)
        finally:
            self._scopes.release(routed.scope)
        return Verdict.ACCEPTED

    def _needed(self, routed: Routed, parsed: ParsedCommand | None, role: Role) -> frozenset[str]:
        """Return the labels that a node needs to take a message, because that concerns the disk of a node."""
        scope, placement = routed.scope, self._placement
        active, argument = self._sessions.active(scope), parsed.argument if parsed is not None else ""
        agent = routed.agent if active is None else active.agent
        session: SessionMeta | None = None
        try:
            match parsed.command.name if parsed is not None else RETRY.name:
                case RETRY.name:
                    session = self._sessions.open_session(scope)
                    if session is None:
                        return placement.needed(*self._repos.workplace(routed.agent, active, role=role))
                case "new":
                    named, _ = parse_new(argument)
                    workplace = self._repos.workplace(routed.agent, active, role=role, named=named or "")
                    return placement.needed(*workplace)
                case AGENT.name:
                    wanted, named = split_agent(argument)
                    found = self._live.settings.agents.get(wanted)
                    if found is None or not role.may_choose_agent(
                        wanted, is_usual=found.choosable or wanted == routed.agent
                    ):
                        return frozenset()
                    if not starts_session(self._repos, argument, agent):
                        folders = (active.repo, active.workspace) if active is not None else ()
                        return placement.needed(wanted, *folders)
                    workplace = self._repos.workplace(routed.agent, active, role=role, agent=wanted, named=named)
                    return placement.needed(*workplace)
                case "workspace":
                    may_choose = role.may_use("workspace", is_for_owners=True)
                    return placement.needed(agent, argument.lower()) if argument and may_choose else frozenset()
                case "session resume" | "diff":
                    number = argument.removeprefix("#")
                    session = self._sessions.find(session_key(scope, int(number))) if is_number(number) else active
        except Refused:  # The command says why.
            return frozenset()
        return frozenset() if session is None else placement.needed_by(session)

    async def _run_now(self, parsed: ParsedCommand, inbound: Inbound, routed: Routed, *, owner: bool) -> None:
        active = self._sessions.active(routed.scope)
        call = Call(
            inbound=inbound,
            routed=routed,
            session=active.key if active else None,
            argument=parsed.argument,
            is_owner=owner,
        )
        await self._commands.run_now(parsed.command, call)


def _cleaned(inbound: Inbound) -> Inbound:
    """Return `inbound` without characters that cannot be stored, with a shortened quote and marked as forwarded.

    The mark keeps a forwarded command from being run.
    """
    text, quote = clean(inbound.text), inbound.quotes
    if inbound.forwarded_from is not None:
        text = f"[forwarded from {_name(inbound.forwarded_from)}] {text}"
    if quote is not None:
        parts = split(clean(quote.text), MAX_QUOTE)  # Empty if the quoted message has no text.
        quote = replace(quote, author=_name(quote.author), text=parts[0]) if parts else None
    is_same = text == inbound.text and quote == inbound.quotes
    return inbound if is_same else replace(inbound, text=text, quotes=quote)


def _name(name: str) -> str:
    return excerpt(clean(name), NAME_WIDTH) or "someone"
