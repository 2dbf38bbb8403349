"""Work: what a lane does with each job, a turn of the agent or a command that waited for the turns before it."""

import asyncio

from gateway.commands import COMMANDS, RETRY, Asked, Command, read
from gateway.errands import Errands
from gateway.errors import Refused
from gateway.jobs import Job
from gateway.signs import Signs
from gateway.turns import Turns
from gateway.whole import whole

__all__ = ["Work"]


class Work:
    def __init__(self, turns: Turns, errands: Errands, signs: Signs) -> None:
        self._turns = turns
        self._errands = errands
        self._signs = signs

    async def run(self, job: Job) -> None:
        match read(job.inbound.text, COMMANDS):
            case Asked():
                self._signs.over(job.turn)
                await self._run_command(job)
            case _:
                await self._turns.run(job)  # It may wait for a place among the others.

    async def _run_command(self, job: Job) -> None:
        match read(job.inbound.text, COMMANDS):
            case Asked(command, argument) if command is RETRY:
                await self._retry(job, command, argument)
            case Asked(command, argument) if command.can_be_stopped:
                await self._errands.run(job, command, argument)
            case Asked(command, argument):
                await whole(self._errands.run(job, command, argument))
            case _:
                await self._turns.run(job)

    async def _retry(self, job: Job, command: Command, argument: str) -> None:
        """Answer the last message anew; where there is none, the command itself says so."""
        try:
            begins_with = [] if job.is_resumed else await self._turns.again(job)
        except Refused as refusal:
            await self._errands.refused(job, str(refusal))
            return
        except asyncio.CancelledError as stop:
            await self._errands.stopped(job, str(stop))
            raise
        if begins_with or job.is_resumed:
            await self._turns.run(job, begins_with)
        else:
            await whole(self._errands.run(job, command, argument))
