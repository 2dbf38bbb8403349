"""Deletes a session together with its work: the running turn, the waiting messages, and the replies not sent yet."""

from collections.abc import Awaitable, Callable, Sequence
from uuid import uuid4

from msgspec.structs import replace

from gateway.commands.command import Answer
from gateway.commands.turns import DroppedJobs
from gateway.contract import Inbound
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.outbound.delivery import Delivery
from gateway.sessions import SessionManager
from gateway.sessions.keys import parse_key
from gateway.spool import Operation, Spool
from gateway.spool.deletion import SESSION_DELETED


class SessionDeletion:
    """Deletes sessions for a person in a chat, and for the operator."""

    def __init__(
        self,
        sessions: SessionManager,
        lanes: Lanes[Job],
        spool: Spool,
        delivery: Delivery,
        *,
        forget: Callable[[str], Awaitable[object]],
    ) -> None:
        """`forget` removes what only the deleted sessions of a scope have said from its memory, as far as it can."""
        self._sessions = sessions
        self._lanes = lanes
        self._spool = spool
        self._delivery = delivery
        self._forget = forget

    async def answer(self, key: str, sentence: str, asked_by: Inbound | None = None) -> Answer:
        """Return an answer whose commit deletes the session. The messages that wait in it are dropped and told so."""
        # 1. Take out the waiting messages, so that none of them starts a turn in the session. If the commit fails,
        #    they go back into the lane.
        # 2. Delete the session, abandon those messages and answer the command, all in one commit.
        # 3. With that commit, stop the turn that is running. It can no longer write to the session.
        unsent = await self._spool.undelivered_turns(key)
        dropped = DroppedJobs(self._spool, [(self._lanes, key)], scope=parse_key(key)[0])
        is_deleted = False

        def stop_work() -> None:
            nonlocal is_deleted
            is_deleted = True
            self._lanes.stop(key, SESSION_DELETED)
            self._delivery.erase(unsent)

        async def commit(operations: Sequence[Operation]) -> None:
            try:
                await self._sessions.delete(key, also=operations, then=stop_work)
            finally:
                if not is_deleted:
                    dropped.put_back()
            await self._forget(parse_key(key)[0])

        return replace(dropped.answer(sentence, asked_by, reason="its session was deleted"), commit=commit)

    async def delete(self, key: str) -> None:
        """Delete a session for the operator. Raises `Refused` if it does not exist."""
        answer = await self.answer(key, "")
        notices = [
            part
            for message in answer.other_chats
            for part in self._delivery.compose(message, key=f"notice-{uuid4().hex}")
        ]
        assert answer.commit is not None  # noqa: S101 - `answer` sets it
        await answer.commit([*answer.operations, *notices])
        self._delivery.post(notices)
