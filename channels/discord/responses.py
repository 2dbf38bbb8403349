"""Slash commands that wait for their answer. The answer takes the place of "is thinking...", below the command."""

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from channels.discord.api import EPHEMERAL, DiscordApi, MessagePayload
from channels.discord.cache import RecentDict
from channels.discord.wire import DISCORD_EPOCH_MS, Json
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


_SHARED_ID = re.compile(
    f"{PREFIX}(?P<private>private:)?(?P<id>[0-9]+):(?P<application_id>[0-9]+):(?P<channel_id>[0-9]+):(?P<token>.+)"
)


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

    In a cluster, any node may have to answer a command. So the responses are `shared`: the message id of a command has
    everything that is needed to answer it.
    """

    def __init__(
        self, api: DiscordApi, clock: Callable[[], float] = time.monotonic, *, are_shared: bool = False
    ) -> None:
        self._api = api
        self._clock = clock
        self.are_shared = are_shared
        self._open = RecentDict[str, _OpenCommand | None](MAX_OPEN)
        """None for a command that gets no answer here any more."""

    def open(self, interaction: Json, acknowledged: asyncio.Task[None] | None, *, is_private: bool) -> str:
        """Expect an answer. Return the message id to which it replies."""
        message_id = self._message_id(interaction, PRIVATE_PREFIX if is_private else PREFIX)
        self._open[message_id] = _OpenCommand(
            interaction=interaction, is_private=is_private, opened_at=self._clock(), acknowledged=acknowledged
        )
        return message_id

    def close(self, interaction: Json) -> None:
        """Expect no answer any more."""
        for prefix in (PREFIX, PRIVATE_PREFIX):
            message_id = self._message_id(interaction, prefix)
            if message_id in self._open:
                self._open[message_id] = None

    def forget(self, message_id: str | None) -> None:
        """Find out again, when an answer comes, how far the command is answered."""
        self._open.pop(message_id or "", None)

    def _message_id(self, interaction: Json, prefix: str) -> str:
        names = ("id", "application_id", "channel_id", "token") if self.are_shared else ("id",)
        return prefix + ":".join(str(interaction[name]) for name in names)

    async def _find(self, message_id: str) -> _OpenCommand | None:
        """Return the command with this message id, if it is open. Another node may have received it."""
        if message_id in self._open or (found := _SHARED_ID.fullmatch(message_id)) is None:
            return self._open.get(message_id)
        age = time.time() - ((int(found["id"]) >> 22) + DISCORD_EPOCH_MS) / 1000
        command = _OpenCommand(
            interaction=found.groupdict(),
            is_private=found["private"] is not None,
            opened_at=self._clock() - max(0.0, age),
            acknowledged=None,
        )
        try:
            command.is_answered = not await self._api.is_deferred(command.interaction)
        except (Undeliverable, AuthRejected):
            return None
        self._open[message_id] = command
        return command

    async def answer(self, reply_to: str | None, kind: OutboundKind, payload: MessagePayload) -> Receipt | None:
        """Send an answer below its command. Return None if it has to be sent as an ordinary message.

        The first part replaces "is thinking...", also if it is retried; later parts follow it.
        """
        command = await self._find(reply_to or "")
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
