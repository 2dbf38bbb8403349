"""The command `/stop`, which ends the turn that is running and drops the messages that wait."""

from collections.abc import Sequence

from msgspec.structs import replace

from gateway.commands.command import Answer, Call, Handlers
from gateway.contract import Inbound
from gateway.errors import GatehouseError
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.sessions import SessionManager
from gateway.spool import InboxState, Operation, SetInboxState, Spool
from gateway.text.plain import count
from gateway.turns.runner import TurnRunner
from gateway.turns.state import STOPPED_HERE


class DroppedJobs:
    """Takes all waiting jobs of a scope out of lanes. They go back in if their end cannot be committed."""

    def __init__(self, spool: Spool, lanes: Sequence[tuple[Lanes[Job], str]], *, scope: str) -> None:
        self._spool = spool
        self._scope = scope
        self._taken = [(each, key, each.take_waiting(key)) for each, key in lanes]
        self._jobs = [job for _, _, jobs in self._taken for job in jobs]

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def put_back(self) -> None:
        for lanes, key, jobs in self._taken:
            lanes.put_back(key, jobs)

    def answer(self, sentence: str, asked_by: Inbound | None, *, reason: str) -> Answer:
        """Return an answer that also says how many messages were dropped. Those from other chats are told there."""
        dropped = f" {count(len(self._jobs), 'waiting message')} dropped." if self._jobs else ""
        chat = asked_by.address if asked_by is not None else None
        here = [job.inbound for job in self._jobs if job.inbound.address == chat]
        return Answer(
            text=f"{sentence}{dropped}",
            operations=tuple(
                SetInboxState(turn=job.turn, state=InboxState.ABANDONED, note=reason) for job in self._jobs
            ),
            other_chats=tuple(
                replace(
                    job.inbound.reply(
                        f"This wasn't answered: {reason}. Please resend it if it's still relevant.",
                        session=job.number,
                    ),
                    is_failure=True,
                )
                for job in self._jobs
                if job.inbound.address != chat
            ),
            unanswered=tuple(inbound.message_id for inbound in here if inbound.message_id),
            commit=self.commit,
        )

    async def commit(self, operations: Sequence[Operation]) -> None:
        """Commit the end of the jobs, or put them back."""
        try:
            await self._spool.commit(*operations, scope=self._scope)
        except GatehouseError:
            self.put_back()
            raise


class TurnCommands:
    """`readings` has the lanes of commands that read transcripts, by scope."""

    def __init__(
        self,
        sessions: SessionManager,
        lanes: Lanes[Job],
        readings: Lanes[Job],
        spool: Spool,
        turns: TurnRunner,
    ) -> None:
        self._sessions = sessions
        self._turns = turns
        self._lanes = lanes
        self._readings = readings
        self._spool = spool

    def handlers(self) -> Handlers:
        return {"stop": self.stop}

    async def stop(self, call: Call) -> Answer:
        scope = call.routed.scope
        # All sessions of the chat: a turn in a session that was left by /new still answers into this chat.
        lanes = [*((self._lanes, session.key) for session in self._sessions.list(scope)), (self._readings, scope)]
        # Empty the lanes first. Otherwise the end of a stopped turn would start the next message.
        dropped = DroppedJobs(self._spool, lanes, scope=scope)
        current = {id(each): dict(each.current()) for each in (self._lanes, self._readings)}
        running = [(each, key, current[id(each)][key]) for each, key in lanes if key in current[id(each)]]
        if not running and not dropped:
            return Answer(text="Nothing is running here.")
        answer = dropped.answer("Stopped.", call.inbound, reason="someone sent /stop")
        # A turn of this chat ends without a word of its own: this answer says it all.
        here = [job for _, _, job in running if job.command is None and job.inbound.address == call.inbound.address]
        silent = [job.inbound.message_id for job in here if not self._turns.has_text(job)]

        async def commit(operations: Sequence[Operation]) -> None:
            await dropped.commit(operations)
            for each, key, job in running:
                each.stop(key, STOPPED_HERE if job in here else "")

        return replace(answer, unanswered=(*filter(None, silent), *answer.unanswered), commit=commit)
