"""Intake: decides whether a message is taken, which session it belongs to, and hands it to that session's lane."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from uuid import uuid4
from weakref import WeakValueDictionary

import structlog

from gateway.access import is_owner, may_talk
from gateway.commands import COMMANDS, Asked, Call, Desk, Kind, Mistyped, read
from gateway.contract import Button, Inbound, Outbound, PeerKind, Verdict
from gateway.delivery import Delivery
from gateway.duplicates import Seen
from gateway.errors import Refused, Transient
from gateway.lanes import Job, Lanes
from gateway.live import Live
from gateway.routing import Routed, route
from gateway.sessions import SessionManager
from gateway.text import clean

__all__ = ["Intake"]

log = structlog.get_logger()


class Intake:
    """`deliver` is what channels call; when it has returned, the platform may forget the message."""

    def __init__(
        self,
        *,
        live: Live,
        sessions: SessionManager,
        lanes: Lanes,
        delivery: Delivery,
        desk: Desk,
        now: Callable[[], datetime],
        seen: Seen,
    ) -> None:
        self._live = live
        self._sessions = sessions
        self._lanes = lanes
        self._delivery = delivery
        self._desk = desk
        self._now = now
        self._seen = seen
        self._closed = False
        # What is accepted first is bound first; a scope's lock lives only while somebody waits for it.
        self._scopes: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def close(self) -> None:
        """Take nothing more; what comes now is told to come again."""
        self._closed = True

    async def deliver(self, inbound: Inbound) -> Verdict:
        if self._closed:
            raise Transient("Gatehouse is shutting down; send it again in a moment.")
        if not inbound.event_id or not self._seen.take(inbound):
            return Verdict.DUPLICATE
        try:
            return await self._take(replace(inbound, text=clean(inbound.text)))
        except Transient:
            self._seen.give_back(inbound)
            raise

    async def _take(self, inbound: Inbound) -> Verdict:
        if not may_talk(self._live.settings, inbound):
            return await self._turn_away(inbound)
        if not inbound.is_addressed:
            return Verdict.REFUSED
        try:
            self._check_size(inbound)
            routed = route(self._live.settings, inbound.address, inbound.sender, inbound.guild)
            await self._act(inbound, routed)
        except Refused as refusal:
            await self._say(inbound, str(refusal))
            return Verdict.REFUSED
        return Verdict.ACCEPTED

    async def _turn_away(self, inbound: Inbound) -> Verdict:
        """Tell a stranger who wrote directly how to get in; in a group, strangers get no answer."""
        log.info("stranger_refused", channel=inbound.address.channel, sender=inbound.sender.id)
        if inbound.address.kind is PeerKind.DIRECT:
            channel = inbound.address.channel
            await self._say(
                inbound,
                f"I do not know you yet. My owner can let you in by adding your id, {inbound.sender.id}, "
                f"to channels.{channel}.allow.",
            )
        return Verdict.REFUSED

    def _check_size(self, inbound: Inbound) -> None:
        limit = self._live.settings.gateway.max_message_chars
        if len(inbound.text) > limit:
            raise Refused(
                f"That message has {len(inbound.text):,} characters; at most {limit:,} fit. Send it in parts."
            )
        if not inbound.text.strip() and not inbound.attachments:
            raise Refused("That message was empty. Write something, or send /help.")

    async def _act(self, inbound: Inbound, routed: Routed) -> None:
        match read(inbound.text, COMMANDS):
            case Mistyped(sentence):
                raise Refused(sentence)
            case Asked(command, argument):
                call = Call(
                    inbound=inbound,
                    routed=routed,
                    argument=argument,
                    is_owner=is_owner(self._live.settings, inbound.address.channel, inbound.sender),
                    desk=self._desk,
                )
                if command.kind is Kind.STRUCTURAL:
                    async with self._scope(routed.scope):
                        answer = await command.run(call)
                else:
                    answer = await command.run(call)
                await self._say(inbound, answer.text, buttons=answer.buttons)
                log.info("command_handled", command=command.name, channel=inbound.address.channel)
            case said:
                async with self._scope(routed.scope):
                    await self._queue(replace(inbound, text=said.text), routed)

    async def _queue(self, inbound: Inbound, routed: Routed) -> None:
        session = await self._sessions.resolve_active(routed.scope, agent=routed.agent, origin=inbound.address)
        self._lanes.put(
            Job(
                inbound=inbound,
                agent=routed.agent,
                scope=routed.scope,
                session=session.key,
                number=session.number,
                turn=uuid4().hex,
                accepted_at=self._now(),
            ),
        )

    def _scope(self, scope: str) -> asyncio.Lock:
        return self._scopes.setdefault(scope, asyncio.Lock())

    async def _say(self, inbound: Inbound, text: str, buttons: tuple[Button, ...] = ()) -> None:
        notice = Outbound(address=inbound.address, text=text, reply_to=inbound.message_id, buttons=buttons)
        await self._delivery.say(notice, key=f"notice-{uuid4().hex}")
