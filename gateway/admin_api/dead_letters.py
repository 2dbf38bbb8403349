"""Dead letters: messages that were set aside, and replies that were not delivered. They are retried or dropped."""

import builtins
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from msgspec.structs import replace

from gateway.admin.routes import retry_dead_replies
from gateway.admin_api import types as t
from gateway.api.operation import ApiCall, invalid
from gateway.contract import Inbound, Verdict
from gateway.inbound.intake import Intake
from gateway.outbound.delivery import Delivery
from gateway.routing import Routed
from gateway.sessions.keys import session_key
from gateway.spool import (
    DropDeadMessage,
    DropDeadReply,
    Duplicate,
    InboxRow,
    Operation,
    OutboxState,
    Spool,
    WrongState,
)
from gateway.text import excerpt

EXCERPT_WIDTH = 200


class LetterRoom:
    """Handles the routes of dead letters."""

    def __init__(self, *, spool: Spool, delivery: Delivery, intake: Intake, now: Callable[[], datetime]) -> None:
        self._spool = spool
        self._delivery = delivery
        self._intake = intake
        self._now = now

    async def list(self, call: ApiCall) -> t.DeadLetters:
        del call
        listing = await self._spool.listing()
        return t.DeadLetters(
            messages=[
                t.DeadMessage(
                    id=row.turn,
                    channel=row.inbound.address.channel,
                    chat=row.inbound.address.peer,
                    sender=row.inbound.sender.name or row.inbound.sender.id,
                    session_key=session_key(row.scope, row.number),
                    accepted_at=row.accepted_at.astimezone(UTC),
                    text=excerpt(row.inbound.text, EXCERPT_WIDTH),
                    reason=row.note,
                )
                for row in listing.inbox
            ],
            replies=[
                t.DeadReply(
                    id=row.key,
                    state=row.state.value,
                    channel=row.message.address.channel,
                    chat=row.message.address.peer,
                    created_at=row.created_at.astimezone(UTC),
                    text=excerpt(row.message.text, EXCERPT_WIDTH),
                    reason=row.reason,
                )
                for row in listing.outbox
            ],
            unreadable=list(listing.unreadable),
        )

    async def retry(self, call: ApiCall) -> t.HandledLetters:
        """Accept messages again, as if they had just been sent, and send replies again."""
        messages, replies = await self._chosen(call)
        for row in messages:
            await self._accept_again(row)
            await self._drop(DropDeadMessage(turn=row.turn))
        for key in replies:
            revived = await retry_dead_replies(self._spool, key)
            for reply in revived if self._spool.shards is None else await self._spool.take_revived():
                self._delivery.enqueue(reply)
        return t.HandledLetters(messages=[row.turn for row in messages], replies=replies)

    async def drop(self, call: ApiCall) -> t.HandledLetters:
        messages, replies = await self._chosen(call)
        for row in messages:
            await self._drop(DropDeadMessage(turn=row.turn))
        for key in replies:
            await self._drop(DropDeadReply(key=key))
        return t.HandledLetters(messages=[row.turn for row in messages], replies=replies)

    async def _chosen(self, call: ApiCall) -> tuple[builtins.list[InboxRow], builtins.list[str]]:
        """Return the dead letters that a request names."""
        body, listing = call.body_as(t.DeadLettersBody), await self._spool.listing()
        dead = {row.key for row in listing.outbox if row.state is OutboxState.DEAD}
        return (
            [row for row in listing.inbox if row.turn in body.messages],
            [key for key in dict.fromkeys(body.replies) if key in dead],
        )

    async def _drop(self, operation: Operation) -> None:
        with suppress(WrongState):  # Another owner was faster.
            await self._spool.commit(operation)

    async def _accept_again(self, row: InboxRow) -> None:
        """Accept a message once more. The id of the event says that, so a repeated retry accepts it once."""
        again: Inbound = replace(
            row.inbound, event_id=f"{row.inbound.event_id}:retry:{row.turn}", sent_at=self._now(), arrival=None
        )
        if row.inbound.is_prompt:
            with suppress(Duplicate):
                await self._intake.accept_prompt(again, Routed(agent=row.agent, scope=row.scope), into=row.session)
            return
        verdict = await self._intake.deliver(again)
        if verdict not in {Verdict.ACCEPTED, Verdict.DUPLICATE}:
            raise invalid("The message was refused: its sender may have lost access. Drop it, or give access back.")
