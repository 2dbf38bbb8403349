"""Slash commands, pressed buttons and completions: acknowledged at once, then taken like any message.

Discord waits three seconds for an answer. What it gets then is only "is thinking"; that goes away when the core has the
command, whose answer comes as any other message does: in order, and whatever crashes.
"""

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime
from enum import IntEnum

import structlog

from channels.discord.api import CHOICES, DEFERRED_MESSAGE, DEFERRED_UPDATE, EPHEMERAL, Api
from channels.discord.client import Frame
from channels.discord.menu import choices, typed
from channels.discord.places import place_of_interaction
from channels.discord.wire import BotIdentity, address_of, sender_of
from gateway.contract import Address, Browser, Deliver, Inbound, Sender, Verdict
from gateway.errors import ChannelError, Transient

__all__ = ["Interactions"]

log = structlog.get_logger()

AT_ONCE = 64
"""Interactions that may be under way; of more, Discord says that there was no answer."""
STRANGE = (KeyError, TypeError, ValueError, AttributeError)
"""What reading raises that is newer than this code, and must not hold up the rest."""
STRANGER = "I do not answer you here. Ask my owner to let you in."
UNREADABLE = "This is out of date. Send the command instead; /help lists them."


class Kind(IntEnum):
    """https://discord.com/developers/docs/interactions/receiving-and-responding#interaction-object-interaction-type."""

    COMMAND = 2
    PRESS = 3
    COMPLETION = 4


class Interactions:
    """Its tasks live in `tasks`."""

    def __init__(self, api: Api, bot: BotIdentity, browser: Browser, tasks: asyncio.TaskGroup) -> None:
        self._api = api
        self._bot = bot
        self._browser = browser
        self._tasks = tasks
        self._under_way: dict[str, asyncio.Task[None]] = {}

    def acknowledge(self, interaction: Frame) -> bool:
        """Answer at once, and tell whether there is something to `take`, which may be much later."""
        if len(self._under_way) >= AT_ONCE:
            log.warning("interaction_dropped", reason="too many at once")
            return False
        match interaction.get("type"):
            case Kind.COMMAND:
                self._start(interaction, self._api.answer(interaction, DEFERRED_MESSAGE, {"flags": EPHEMERAL}))
                return True
            case Kind.PRESS:
                self._start(interaction, self._api.answer(interaction, DEFERRED_UPDATE))
                return True
            case Kind.COMPLETION:
                self._start(interaction, self._complete(interaction))
        return False

    async def take(self, interaction: Frame, deliver: Deliver) -> None:
        """Hand the command to the core, and the person what there is to say if it was not taken."""
        try:
            inbound = self._read(interaction)
        except STRANGE as strange:
            log.warning("interaction_skipped", reason=f"it cannot be read ({type(strange).__name__})")
            inbound = None
        if inbound is None:
            self._finish(interaction, UNREADABLE)
            return
        try:
            verdict = await deliver(inbound)
        except Transient as trouble:  # It cannot be asked for again later, so whoever acted has to.
            self._finish(interaction, str(trouble))
        else:
            self._finish(interaction, STRANGER if verdict is Verdict.IGNORED else None)

    def _read(self, interaction: Frame) -> Inbound | None:
        """Read as if the person had typed it. Only a command is taken of what a button holds."""
        data = interaction.get("data") or {}
        is_press = interaction["type"] == Kind.PRESS
        text = str(data.get("custom_id", "")) if is_press else typed(data, self._browser.commands())
        if not text.startswith("/"):
            return None
        address, sender = self._who(interaction)
        message = interaction.get("message") or {}
        return Inbound(
            address=address,
            sender=sender,
            event_id=f"interaction:{interaction['id']}",
            text=text,
            sent_at=datetime.now(UTC),
            message_id=str(message["id"]) if is_press and "id" in message else None,
            guild=place_of_interaction(interaction).guild,
        )

    def _who(self, interaction: Frame) -> tuple[Address, Sender]:
        member = interaction.get("member")
        sender = sender_of((member or interaction)["user"], member)
        return address_of(place_of_interaction(interaction), sender.id, self._bot), sender

    async def _complete(self, interaction: Frame) -> None:
        address, sender = self._who(interaction)
        sessions = self._browser.sessions(address, sender, place_of_interaction(interaction).guild)
        fitting = choices(interaction.get("data") or {}, sessions)
        await self._api.answer(interaction, CHOICES, {"choices": fitting})

    def _finish(self, interaction: Frame, sentence: str | None) -> None:
        self._start(interaction, self._close(interaction, sentence, self._under_way.get(interaction["id"])))

    async def _close(self, interaction: Frame, sentence: str | None, acknowledged: asyncio.Task[None] | None) -> None:
        if acknowledged is not None:
            await acknowledged
        if sentence is not None:
            await self._api.tell(interaction, sentence)
        elif interaction["type"] == Kind.COMMAND:
            await self._api.clear(interaction)

    def _start(self, interaction: Frame, work: Coroutine[None, None, None]) -> None:
        name = str(interaction["id"])
        task = self._tasks.create_task(self._safely(work), name=f"interaction:{name}")
        self._under_way[name] = task
        task.add_done_callback(lambda done: self._forget(name, done))

    def _forget(self, name: str, done: asyncio.Task[None]) -> None:
        if self._under_way.get(name) is done:
            del self._under_way[name]

    async def _safely(self, work: Coroutine[None, None, None]) -> None:
        """Nothing else may end because an interaction could not be answered."""
        try:
            await work
        except ChannelError as trouble:
            log.info("interaction_not_answered", reason=str(trouble))
        except STRANGE as strange:
            log.warning("interaction_skipped", reason=f"it cannot be read ({type(strange).__name__})")
