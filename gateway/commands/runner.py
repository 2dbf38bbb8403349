"""Runs commands, at intake or from a lane, and commits their answers and changes in one transaction."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from functools import partial
from uuid import uuid4

import structlog
from msgspec.structs import replace

from gateway.access.roles import check_command, role_in
from gateway.access.rules import AccessLost, Live, check_access, has_access, is_owner
from gateway.aio import finish_before_cancel
from gateway.commands.command import Answer, Call, Command, Handlers
from gateway.commands.registry import BY_NAME, COMMANDS
from gateway.contract import Inbound
from gateway.errors import OUR_FAULT, Refused
from gateway.job import Job, JobSlots
from gateway.metrics import Metrics
from gateway.outbound.delivery import Delivery
from gateway.routing import Routed
from gateway.spool import InboxState, MarkSeen, Operation, SetInboxState, Spool, StartTurn
from gateway.spool.spool import retry_while_unavailable
from gateway.tracing import current_trace

log = structlog.get_logger()


class CommandRunner:
    """A command's change, its answer and the end of its message are one commit. A crash can't split or repeat them."""

    def __init__(
        self,
        handlers: Handlers,
        *,
        live: Live,
        spool: Spool,
        delivery: Delivery,
        metrics: Metrics,
        now: Callable[[], datetime],
        slots: JobSlots,
    ) -> None:
        # A forgotten handler fails at start, not when a person sends the command.
        missing = {command.name for command in COMMANDS} - handlers.keys()
        if missing:
            raise ValueError(f"commands without a handler: {sorted(missing)}")
        self._handlers = handlers
        self._live = live
        self._spool = spool
        self._delivery = delivery
        self._metrics = metrics
        self._now = now
        self._slots = slots
        self._is_suspending = False
        self.suspended: list[str] = []
        """Turns of commands that were cancelled after `suspend`. They run again after the next start."""

    def suspend(self) -> None:
        """Answer nothing to commands that are cancelled from now on, because the daemon is ending."""
        self._is_suspending = True

    async def run_now(self, command: Command, call: Call) -> None:
        """Run a command at intake. Raises `Refused` or the spool's error if nothing has changed.

        A command that has been committed is also answered, even if the caller is cancelled.
        """
        await finish_before_cancel(self._run_now(command, call))

    async def _run_now(self, command: Command, call: Call) -> None:
        answer = await self._handle(command, call)
        await self._commit(call.inbound, answer, MarkSeen.of(call.inbound, self._now()), scope=call.routed.scope)
        self._report(command, call.inbound)

    async def _handle(self, command: Command, call: Call) -> Answer:
        role = role_in(self._live, call.inbound)
        check_command(role, command.name, is_for_owners=command.is_for_owners)
        is_granted = role.may_use(command.name, is_for_owners=command.is_for_owners)
        return await self._handlers[command.name](replace(call, is_granted=is_granted))

    async def run_queued(self, job: Job) -> None:
        """Run a command from a lane. Raises nothing but cancellation: errors become its answer."""
        command = BY_NAME[job.command or ""]
        run = self._run_queued(command, job)
        await (run if command.can_be_stopped else finish_before_cancel(run))

    async def _run_queued(self, command: Command, job: Job) -> None:
        call = Call(
            inbound=job.inbound,
            routed=Routed(agent=job.agent, scope=job.scope),
            session=job.session,
            argument=job.argument,
            is_owner=is_owner(self._live, job.inbound.address, job.inbound.sender),
            is_queued=True,
        )
        # A cancellation before the commit means that nothing has happened, and is answered. A cancellation during the
        # commit comes too late: `finish_before_cancel` finishes it first.
        is_committing = False
        failure = ""
        try:
            async with AsyncExitStack() as held:
                if command.can_be_stopped:  # It may be what crashes the daemon, so this counts as an attempt.
                    for slot in self._slots.suspect if job.is_suspect else self._slots.command:
                        await held.enter_async_context(slot)
                    start = StartTurn(turn=job.turn)
                    await retry_while_unavailable(partial(self._spool.commit, start, scope=job.scope))
                check_access(self._live, job.inbound)
                answer = await retry_while_unavailable(partial(self._handle, command, call))
                is_committing = True
                await finish_before_cancel(self._commit_queued(job, answer))
        except asyncio.CancelledError as stop:
            if not is_committing:
                await self.stopped(job, str(stop))
            raise
        except (Refused, AccessLost) as refusal:
            failure = str(refusal)
        except Exception:  # A bug in one command must not end the daemon, nor the next one that recovers the command.
            log.exception("command_crashed", command=command.name)
            failure = OUR_FAULT
        if failure:
            await self.refuse(job, failure)
        self._report(command, job.inbound)

    async def stopped(self, job: Job, reason: str) -> None:
        """Answer a cancelled command. If the daemon is ending, leave it for the next start instead."""
        if self._is_suspending:
            self.suspended.append(job.turn)
        else:
            await self.refuse(job, reason or "Stopped. Nothing has changed.")

    async def refuse(self, job: Job, text: str) -> None:
        """Answer a queued command with `text` and nothing else."""
        await finish_before_cancel(self._commit_queued(job, Answer(text=text, is_failure=True)))

    async def reply(
        self, inbound: Inbound, text: str, operations: Sequence[Operation] = (), *, is_unknown: bool = False
    ) -> None:
        """Answer a message at intake, instead of accepting it. `operations` are committed with the answer.

        Other messages go only to people who have access. One to an unknown sender is about that.
        """
        answer = Answer(text=text, operations=tuple(operations))
        seen = MarkSeen.of(inbound, self._now())
        scope = inbound.arrival.scope if inbound.arrival is not None else ""
        await finish_before_cancel(self._commit(inbound, answer, seen, scope=scope, is_unknown=is_unknown))

    async def _commit_queued(self, job: Job, answer: Answer) -> None:
        # A person who has lost access gets no answer.
        is_answered = has_access(self._live, job.inbound)
        done = SetInboxState(turn=job.turn, state=InboxState.ANSWERED if is_answered else InboxState.ABANDONED)
        await retry_while_unavailable(partial(self._commit, job.inbound, answer, done, scope=job.scope))
        if (trace := current_trace()) is not None:
            trace.settle([job], done.state, is_failure=answer.is_failure)

    async def _commit(
        self, inbound: Inbound, answer: Answer, done: Operation, *, scope: str, is_unknown: bool = False
    ) -> None:
        """Commit an answer together with `done`, which ends the message, and deliver it. Raises if nothing happened."""
        notice = inbound.reply(answer.text)
        notice = replace(
            notice,
            buttons=answer.buttons,
            recipient=None if is_unknown else notice.recipient,
            is_failure=answer.is_failure,
            unanswered=answer.unanswered,
        )
        parts = [
            part
            for message in (notice, *answer.other_chats)
            for part in self._delivery.compose(
                message, key=f"notice-{uuid4().hex}", files=answer.files if message is notice else (), scope=scope
            )
        ]
        operations = [done, *answer.operations, *parts]
        if answer.commit is None:
            await self._spool.commit(*operations, scope=scope or None)
        else:
            await answer.commit(operations)
        # Only committed parts are sent: a crash before this line sends them after the next start.
        self._delivery.post(parts)

    def _report(self, command: Command, inbound: Inbound) -> None:
        address = inbound.address
        self._metrics.command_run(address.channel, command.name)
        log.info("command_handled", command=command.name, channel=address.channel, chat=address.peer)
