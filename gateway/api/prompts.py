"""Prompts: accepts the message of a program into a session, once for each `Idempotency-Key`."""

import hashlib
from collections.abc import Callable, Sequence
from datetime import datetime
from random import Random
from uuid import NAMESPACE_URL, UUID, uuid5

from msgspec import Struct
from msgspec.structs import replace

from config.types import API_CHANNEL
from gateway.api.programs import sender_of
from gateway.contract import Address, Attachment, Caller, Inbound, PeerKind
from gateway.errors import Refused
from gateway.inbound.intake import Intake
from gateway.routing import Routed
from gateway.sessions import SessionMeta
from gateway.spool import Duplicate, MarkSeen, Spool


class KeyReused(Refused):
    """The same `Idempotency-Key` came before with another prompt."""

    def __init__(self) -> None:
        super().__init__("This Idempotency-Key was used for another prompt. Use a new key for each prompt.")


class AcceptedPrompt(Struct, frozen=True, kw_only=True):
    """`turn` is the turn that answers the prompt. It is None if that is too long ago to be known."""

    message_id: str
    at: datetime
    turn: str | None


class Prompts:
    def __init__(self, intake: Intake, spool: Spool, *, now: Callable[[], datetime]) -> None:
        self._intake = intake
        self._spool = spool
        self._now = now
        # `os.urandom` releases the interpreter lock, and another thread may then keep it for milliseconds.
        self._random = Random()  # noqa: S311 - makes unique ids, not secrets

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
        content: str = "",
    ) -> AcceptedPrompt:
        """Accept a prompt into `session`. When this returns, it cannot be lost, and its turn runs by itself.

        With the same `key`, a prompt is accepted once in at least 48 hours. `content` has to be the same then, which is
        a digest of the prompt unless the caller has a better one. Raises `Refused`, `NotAccepted`, and `KeyReused` if
        the key came with another prompt.
        """
        sender, now = sender_of(caller), self._now()
        if key is not None:
            message_id = self.message_id(caller, session, key)
        elif not message_id:
            message_id = str(UUID(int=self._random.getrandbits(128), version=4))
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
        # The mark of the event refuses a repeated key. This one, committed with it, tells a repetition of the same
        # prompt from another prompt with the same key.
        content = content or _digest(text, attachments, instructions)
        mark = replace(MarkSeen.of(inbound, now), event_id=f"{message_id}:{content}")
        try:
            job = await self._intake.accept_prompt(
                inbound,
                Routed(agent=session.agent, scope=session.scope),
                into=session.key,
                also=[mark] if key is not None else [],
            )
        except (Duplicate, Refused):
            # A repetition gets its old answer even if the session has ended since, or its queue is full.
            if key is None or not await self.was_accepted(message_id, content, channel=channel):
                raise
            return await self.find(session, message_id, channel=channel)
        return AcceptedPrompt(message_id=message_id, at=now, turn=job.turn)

    def message_id(self, caller: Caller, session: SessionMeta, key: str) -> str:
        """Return the id that a prompt with this key has."""
        return str(uuid5(NAMESPACE_URL, f"gatehouse:prompt:{session.id}:{sender_of(caller).id}:{key}"))

    async def find(self, session: SessionMeta, message_id: str, *, channel: str = API_CHANNEL) -> AcceptedPrompt:
        """Return a prompt that was accepted before, so that its repetition gets the same response."""
        address = Address(channel=channel, kind=PeerKind.DIRECT, peer=session.id)
        row = await self._spool.find_message(address, message_id)
        if row is None:
            return AcceptedPrompt(message_id=message_id, at=self._now(), turn=None)
        return AcceptedPrompt(message_id=message_id, at=row.inbound.sent_at, turn=row.turn)

    async def was_accepted(self, message_id: str, content: str, *, channel: str = API_CHANNEL) -> bool:
        """Return whether a prompt with a key was accepted before. Raises `KeyReused` if its content was another."""
        mark = MarkSeen(channel=channel, account="default", event_id=message_id, at=self._now())
        if not await self._spool.was_seen(mark):
            return False
        if not await self._spool.was_seen(replace(mark, event_id=f"{message_id}:{content}")):
            raise KeyReused from None
        return True


def _digest(text: str, attachments: Sequence[Attachment], instructions: str) -> str:
    # The reference of a file is new for each upload, so that its name and size have to do.
    files = [f"{file.name}\0{file.size}" for file in attachments]
    parts = [text, instructions, *files]
    return hashlib.sha256("\0\0".join(parts).encode(errors="surrogatepass")).hexdigest()[:32]
