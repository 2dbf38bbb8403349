"""Work: what a lane does with each job, a turn of the agent or a command that waited for the turns before it."""

import asyncio

from gateway.aio import finish_before_cancel
from gateway.commands import COMMANDS, RETRY, Command
from gateway.commands.runner import Errands
from gateway.errors import Refused
from gateway.job import Job
from gateway.outbound.reactions import WaitingReactions
from gateway.turns.runner import TurnRunner

__all__ = ["Work"]


class Work:
    def __init__(self, turns: TurnRunner, errands: Errands, signs: WaitingReactions) -> None:
        self._turns = turns
        self._errands = errands
        self._signs = signs

    async def run(self, job: Job) -> Job | None:
        """Do what `job` asks; return the one that has begun with its end, if any."""
        if job.command is None:
            return await self._turns.run(job)  # It may wait for a place among the others.
        self._signs.remove(job.turn)
        command = next(each for each in COMMANDS if each.name == job.command)
        if command is RETRY:
            return await self._retry(job, command, job.argument)
        errand = self._errands.run(job, command, job.argument)
        await (errand if command.can_be_stopped else finish_before_cancel(errand))
        return None

    async def _retry(self, job: Job, command: Command, argument: str) -> Job | None:
        """Answer the last message anew; where there is none, the command itself says so."""
        try:
            begins_with = [] if job.is_resumed else await self._turns.retry_opening(job)
        except Refused as refusal:
            await self._errands.refused(job, str(refusal))
            return None
        except asyncio.CancelledError as stop:
            await self._errands.stopped(job, str(stop))
            raise
        if begins_with or job.is_resumed:
            return await self._turns.run(job, begins_with)
        await finish_before_cancel(self._errands.run(job, command, argument))
        return None
