"""Outcomes of runs: what is stored when one ends, when a failed one is tried again, and who is told."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from uuid import uuid4

import structlog
from msgspec.structs import replace

from config.types import PROGRAM_CHANNELS
from gateway.access.owner_chats import OwnerChats
from gateway.access.rules import Live
from gateway.contract import Inbound, Outbound
from gateway.metrics import Metrics
from gateway.outbound.delivery import Delivery
from gateway.schedules.schedules import describe
from gateway.sessions import TurnOutcome
from gateway.spool import AddToOutbox, EndRun, Operation, RunState, ScheduleRow, ScheduleState, Spool
from gateway.spool.spool import retry_while_unavailable

log = structlog.get_logger()

RETRY_DELAYS = (60.0, 300.0, 900.0, 3_600.0, 14_400.0)
"""Seconds until a schedule runs again after its first failure, its second one and so on."""
MAX_TRIES = 6
"""Runs of a schedule with a single time, until it is given up."""


class RunOutcomes:
    """`changed` wakes the scheduler: a run that has ended may have to be repeated."""

    def __init__(
        self,
        live: Live,
        spool: Spool,
        delivery: Delivery,
        owner_chats: OwnerChats,
        metrics: Metrics,
        changed: asyncio.Event,
        *,
        now: Callable[[], datetime],
    ) -> None:
        self._live = live
        self._spool = spool
        self._delivery = delivery
        self._owner_chats = owner_chats
        self._metrics = metrics
        self._changed = changed
        self._now = now

    def failed(self, row: ScheduleRow, reason: str) -> tuple[int, datetime | None, list[AddToOutbox]]:
        """Return the failures of a schedule after another one, when it is tried again, and what its owner is told.

        They are told once, and again when it works. One that is paused or deleted is not tried again.
        """
        failures = row.failures + 1
        is_last = row.about.when.at is not None and failures >= MAX_TRIES
        delay = RETRY_DELAYS[min(failures, len(RETRY_DELAYS)) - 1]
        log.warning("schedule_failed", schedule=row.id, failures=failures, reason=reason)
        notices: list[AddToOutbox] = []
        if row.state in {ScheduleState.PAUSED, ScheduleState.DELETED}:
            return failures, None, self.notices(row, f"{describe(row)} has failed: {reason}")
        if is_last:
            notices = self.notices(row, f"{describe(row)} has failed {failures} times, so I gave it up. {reason}")
        elif failures == 1:
            notices = self.notices(
                row,
                f"{describe(row)} has failed: {reason} I'll try again after growing pauses, and tell you when it "
                f"works. /schedule history {row.number} shows its runs.",
            )
        return failures, None if is_last else self._now() + timedelta(seconds=delay), notices

    def notices(self, row: ScheduleRow, text: str, *, is_for_owners: bool = False) -> list[AddToOutbox]:
        """Return messages about a schedule to the person who made it, or to the owners of the gateway.

        The owners are told if a program or the configuration has made it, or its chat cannot be reached.
        """
        about = row.about
        is_person = not about.maker.schedule and not about.maker.token and about.address.channel not in PROGRAM_CHANNELS
        if is_person and not is_for_owners:
            there = Outbound(
                address=self._live.current_address(about.address), text=text, recipient=about.maker, guild=about.guild
            )
            messages = [there]
        else:
            messages = [
                Outbound(address=chat, text=text, recipient=sender) for chat, sender in self._owner_chats.chats()
            ]
        return [
            part
            for message in messages
            for part in self._delivery.compose(message, key=f"notice-{uuid4().hex}", scope=row.scope)
        ]

    async def end_runs(
        self, messages: Sequence[Inbound], outcome: TurnOutcome, reason: str
    ) -> tuple[list[Operation], list[AddToOutbox]]:
        """Return what is committed with the end of the turn that has answered `messages`, and what is sent then.

        Call `runs_ended` after that commit.
        """
        operations: list[Operation] = []
        parts: list[AddToOutbox] = []
        for scheduled in filter(None, (each.scheduled for each in messages)):
            row = await retry_while_unavailable(partial(self._spool.find_schedule, scheduled.id))
            if row is None:
                continue
            end = EndRun(schedule=row.id, number=scheduled.run, state=RunState.DONE, at=self._now())
            match outcome:
                case TurnOutcome.ANSWERED:
                    self._metrics.schedule_run(RunState.DONE)
                    if row.failures:
                        parts += self.notices(row, f"{describe(row)} works again.")
                case TurnOutcome.FAILED:
                    self._metrics.schedule_run(RunState.FAILED)
                    failures, retry_at, told = self.failed(row, reason)
                    parts += told
                    end = replace(end, state=RunState.FAILED, note=reason, failures=failures, retry_at=retry_at)
                case _:
                    self._metrics.schedule_run(RunState.STOPPED)
                    end = replace(end, state=RunState.STOPPED, note=reason)
            operations.append(end)
        return operations, parts

    def runs_ended(self) -> None:
        """Let the scheduler look again: a run has ended, and may have to be repeated."""
        self._changed.set()
