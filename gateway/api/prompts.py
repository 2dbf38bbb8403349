"""Prompts: accepts the message of a program into a session, once for each `Idempotency-Key`."""

import hashlib
from collections.abc import Callable, Sequence
from datetime import datetime
from uuid import NAMESPACE_URL, uuid4, uuid5

from msgspec import Struct

from config.types import API_CHANNEL
from gateway.api.programs import sender_of
from gateway.contract import Address, Attachment, Caller, Inbound, PeerKind
from gateway.errors import Refused
from gateway.inbound.intake import Intake
from gateway.job import Job
from gateway.routing import Routed
from gateway.sessions import SessionMeta
from gateway.spool import Duplicate, MarkSeen, Spool


class KeyReused(Refused):
    """The same `Idempotency-Key` came before with another prompt."""

    def __init__(self) -> None:
        super().__init__("This Idempotency-Key was used for another prompt. Use a new key for each prompt.")


class AcceptedPrompt(Struct, frozen=True, kw_only=True):
    """`job` is None if the prompt had been accepted before, with the same key."""

    message_id: str
    at: datetime
    job: Job | None


class Prompts:
    def __init__(self, intake: Intake, spool: Spool, *, now: Callable[[], datetime]) -> None:
        self._intake = intake
        self._spool = spool
        self._now = now

    async def accept(
        self,
        caller: Caller,
        session: SessionMeta,
        text: str,
        *,
        message_id: str = "",
        channel: str = API_CHANNEL,
        attachments: Sequence[Attachment] = (),
        instructions: str = "",
        key: str | None = None,
    ) -> AcceptedPrompt:
        """Accept a prompt into `session`. When this returns, it cannot be lost, and its turn runs by itself.

        With the same `key`, a prompt is accepted once in at least 48 hours. Raises `Refused`, `NotAccepted`, and
        `KeyReused` if the key came with another prompt.
        """
        sender, now = sender_of(caller), self._now()
        message_id = message_id or str(uuid4())
        if key is not None:
            message_id = str(uuid5(NAMESPACE_URL, f"gatehouse:prompt:{session.id}:{sender.id}:{key}"))
        inbound = Inbound(
            address=Address(channel=channel, kind=PeerKind.DIRECT, peer=session.id),
            sender=sender,
            event_id=message_id,
            message_id=message_id,
            text=text,
            sent_at=now,
            attachments=tuple(attachments),
            is_prompt=True,
            instructions=instructions,
        )
        seen = MarkSeen.of(inbound, now)
        # The mark of the event refuses a repeated key. This one, committed with it, tells a repetition of the same
        # prompt from another prompt with the same key.
        content = MarkSeen(
            channel=seen.channel,
            account=seen.account,
            event_id=f"{message_id}:{_digest(text, attachments, instructions)}",
            at=now,
        )
        try:
            job = await self._intake.accept_prompt(
                inbound,
                Routed(agent=session.agent, scope=session.scope),
                into=session.key,
                also=[content] if key is not None else [],
            )
        except (Duplicate, Refused):
            # A repetition gets its old answer even if the session has ended since, or its queue is full.
            if key is None or not await self._spool.was_seen(seen):
                raise
            if not await self._spool.was_seen(content):
                raise KeyReused from None
            return AcceptedPrompt(message_id=message_id, at=now, job=None)
        return AcceptedPrompt(message_id=message_id, at=now, job=job)


def _digest(text: str, attachments: Sequence[Attachment], instructions: str) -> str:
    # The reference of a file is new for each upload, so that its name and size have to do.
    files = [f"{file.name}\0{file.size}" for file in attachments]
    parts = [text, instructions, *files]
    return hashlib.sha256("\0\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:32]
