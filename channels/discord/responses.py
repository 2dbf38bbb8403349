"""Slash commands that wait for their answer. The answer takes the place of "is thinking...", below the command."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from channels.discord.api import EPHEMERAL, DiscordApi, MessagePayload
from channels.discord.cache import RecentDict
from channels.discord.wire import Json
from gateway.contract import OutboundKind, Receipt
from gateway.errors import AuthRejected, Undeliverable

MAX_OPEN = 256
VALID_FOR = 14 * 60.0
"""Seconds. Discord accepts answers to an interaction for 15 minutes."""
PREFIX = "interaction:"
"""Starts the message id of a slash command, which has no message of its own."""
PRIVATE_PREFIX = f"{PREFIX}private:"
"""Starts the message id of a slash command whose answer only the person may see."""
ANSWER_BELOW = "The answer is below."
TOO_LATE = "I couldn't answer your command in time, so that only you can see it. Please send it again."


@dataclass(slots=True, kw_only=True)
class _OpenCommand:
    interaction: Json
    is_private: bool
    opened_at: float
    acknowledged: asyncio.Task[None] | None
    is_answered: bool = False


class CommandResponses:
    """Remembers open commands in memory only: after a restart, their answers are ordinary messages.

    Only an interaction allows a message that one person sees, so the answer to a private command is not sent then.
    """

    def __init__(self, api: DiscordApi, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._open = RecentDict[str, _OpenCommand](MAX_OPEN)

    def open(self, interaction: Json, acknowledged: asyncio.Task[None] | None, *, is_private: bool) -> str:
        """Expect an answer. Return the message id to which it replies."""
        message_id = f"{PRIVATE_PREFIX if is_private else PREFIX}{interaction['id']}"
        self._open[message_id] = _OpenCommand(
            interaction=interaction, is_private=is_private, opened_at=self._clock(), acknowledged=acknowledged
        )
        return message_id

    def close(self, interaction: Json) -> None:
        """Expect no answer any more."""
        for prefix in (PREFIX, PRIVATE_PREFIX):
            self._open.pop(f"{prefix}{interaction['id']}", None)

    async def answer(self, reply_to: str | None, kind: OutboundKind, payload: MessagePayload) -> Receipt | None:
        """Send an answer below its command. Return None if it has to be sent as an ordinary message.

        The first part replaces "is thinking...", also if it is retried; later parts follow it.
        """
        command = self._open.get(reply_to or "")
        if command is None:
            return None
        if command.acknowledged is not None:  # Discord takes nothing else before the acknowledgement.
            await asyncio.wait({command.acknowledged})
        if self._clock() - command.opened_at > VALID_FOR:
            self.close(command.interaction)
            return None
        flags = EPHEMERAL if command.is_private else 0
        try:
            if kind is OutboundKind.REPLY:
                # The agent's answer to /retry is streamed by edits, which only an ordinary message allows.
                self.close(command.interaction)
                await self._api.edit_response(command.interaction, MessagePayload(text=ANSWER_BELOW))
                return None
            if command.is_answered:
                number = await self._api.follow_up(command.interaction, payload, flags)
            else:
                number = await self._api.edit_response(command.interaction, payload)
                command.is_answered = True
        except (Undeliverable, AuthRejected):  # The interaction has expired, or its response was deleted.
            self.close(command.interaction)
            return None
        return Receipt(message_id=f"{command.interaction['channel_id']}:{number}")
