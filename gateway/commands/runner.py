"""Errands: the commands that wait for their turn in a session's lane, since they change what the model will see."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from uuid import uuid4

import structlog

from gateway.access.live import Live
from gateway.access.rules import check_still_welcome, is_owner
from gateway.aio import finish_before_cancel
from gateway.commands.command import Answer, Call, Command, Desk
from gateway.contract import Inbound, Outbound
from gateway.errors import OUR_FAULT, Refused
from gateway.job import Job
from gateway.outbound.delivery import Delivery
from gateway.routing import Routed
from gateway.spool import AddToOutbox, InboxState, Operation, SetInboxState, StartTurn
from gateway.spool.spool import retry_while_full

log = structlog.get_logger()


class Reply:
    """`settles` says what becomes of the message itself: it is part of the same commit."""

    def __init__(self, delivery: Delivery, inbound: Inbound, settles: Operation) -> None:
        self._delivery = delivery
        self._inbound = inbound
        self._settles = settles
        self.parts: list[AddToOutbox] = []
        """What is to be posted once the operations are committed."""

    def operations(self, answer: Answer) -> Sequence[Operation]:
        notice = Outbound(
            address=self._inbound.address,
            text=answer.text,
            reply_to=self._inbound.message_id,
            buttons=answer.buttons,
        )
        said = (notice, *answer.notices)
        self.parts = [part for each in said for part in self._delivery.compose(each, key=f"notice-{uuid4().hex}")]
        return [self._settles, *answer.also, *self.parts]


class Errands:
    """What a command changes, what it answers and that it is done are one commit: it is never half done, or twice."""

    def __init__(self, *, live: Live, delivery: Delivery, desk: Desk, is_suspending: Callable[[], bool]) -> None:
        self._live = live
        self._delivery = delivery
        self._desk = desk
        self._is_suspending = is_suspending
        self.suspended: list[str] = []
        """Commands that were begun and wait for the next start."""

    async def run(self, job: Job, command: Command, argument: str) -> None:
        reply = _reply(self._delivery, job)
        call = Call(
            inbound=job.inbound,
            routed=Routed(agent=job.agent, scope=job.scope),
            session=job.session,
            argument=argument,
            is_owner=is_owner(self._live, job.inbound.address, job.inbound.sender),
            desk=self._desk,
            settle=reply.operations,
        )
        try:
            if command.can_be_stopped:  # It may take long enough to be what ends the daemon.
                await self._delivery.record(StartTurn(turn=job.turn))
            answer = await self._obeyed(call, command, reply)
        except asyncio.CancelledError as stop:
            await self.stopped(job, str(stop))
            raise
        await finish_before_cancel(self._answer(reply, answer))
        self._delivery.metrics.command_run(job.inbound.address.channel, command.name)
        log.info("command_handled", command=command.name, channel=job.inbound.address.channel)

    async def _obeyed(self, call: Call, command: Command, reply: Reply) -> Answer:
        """Run the command; what it has prepared to say counts only where it comes to its end."""

        def run() -> Awaitable[Answer]:
            reply.parts = []
            return command.run(call)

        try:
            check_still_welcome(self._live, call.inbound)
            return await retry_while_full(run)
        except Refused as refusal:
            sentence = str(refusal)
        except Exception:  # One command's bug must not end the daemon, nor the next one that finds it waiting.
            log.exception("command_crashed", command=command.name)
            sentence = OUR_FAULT
        reply.parts = []
        return Answer(text=sentence)

    async def stopped(self, job: Job, reason: str) -> None:
        """Tell that a command has come to nothing; when the daemon ends, it waits for the next start instead."""
        if self._is_suspending():
            self.suspended.append(job.turn)
        else:
            await self.refused(job, reason or "Stopped. Nothing has changed.")

    async def refused(self, job: Job, reason: str) -> None:
        await finish_before_cancel(self._answer(_reply(self._delivery, job), Answer(text=reason)))

    async def _answer(self, reply: Reply, answer: Answer) -> None:
        if not reply.parts:
            await self._delivery.record(*reply.operations(answer))
        self._delivery.post(reply.parts)


def _reply(delivery: Delivery, job: Job) -> Reply:
    return Reply(delivery, job.inbound, SetInboxState(turn=job.turn, state=InboxState.ANSWERED))
