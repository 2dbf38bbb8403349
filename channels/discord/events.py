"""Reads gateway events in order, one at a time, and hands messages and commands to the core."""

import asyncio
import dataclasses
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import StrEnum

import structlog
from msgspec.structs import replace

from channels.discord.cache import GuildCache
from channels.discord.catchup import HistoryReader, ReadPosition, ReadPositions
from channels.discord.interactions import Interactions
from channels.discord.resume_state import ResumeState
from channels.discord.wire import UNREADABLE, DiscordBot, DiscordChat, Json, read_message
from gateway.contract import Deliver, Inbound, PeerKind, Pulse, Verdict
from gateway.errors import NotAccepted, Transient, Undeliverable

log = structlog.get_logger()

QUEUE_SIZE = 2_000
"""Events that may wait. Further ones are dropped and caught up on when the queue is empty."""
RETRY_DELAY = 1.0
"""Seconds until a message that the core could not take is offered again."""
SAVE_TIMEOUT = 2.0
"""Seconds that the read positions may take to be saved at the end."""
MAX_DROPPED_CHATS = 200
"""Chats without a read position for which the first dropped message is remembered."""
HANDLED_EVENTS = {"MESSAGE_CREATE", "MESSAGE_UPDATE", "INTERACTION_CREATE", "READY"}


class CatchUpEvent(StrEnum):
    """Events that the reader adds to Discord's own."""

    DROPPED = "CATCH_UP_DROPPED"
    POSTPONED = "CATCH_UP_POSTPONED"


class EventReader:
    """`on_direct_chat` is called with the ids of a person and of the direct channel that the person writes in."""

    def __init__(
        self,
        *,
        bot: DiscordBot,
        positions: ReadPositions,
        history: HistoryReader,
        guilds: GuildCache,
        interactions: Interactions,
        pulse: Pulse,
        on_direct_chat: Callable[[str, str], None],
        resume_state: ResumeState | None = None,
    ) -> None:
        self._bot = bot
        self._resume_state = resume_state
        self._positions = positions
        self._history = history
        self._guilds = guilds
        self._interactions = interactions
        self._pulse = pulse
        self._on_direct_chat = on_direct_chat
        self._events: asyncio.Queue[tuple[str, Json, int]] = asyncio.Queue(QUEUE_SIZE)
        self._has_dropped = False
        self._first_dropped: dict[str, Json] = {}  # By channel, for chats that have no read position.

    def receive(self, event: str, data: Json, sequence: int = 0) -> None:
        """Queue an event. Acknowledges an interaction at once, because Discord waits only three seconds."""
        if event not in HANDLED_EVENTS:
            self._guilds.update(event, data)
            return
        # An overflow loses no message and keeps their order:
        # 1. The queue is full, so this event is dropped, and all later ones too: they must not overtake it.
        # 2. `run` handles the queue until it is empty.
        # 3. It lets events in again, and only then reads the histories. A message that arrives before that comes
        #    twice, and the core drops the second.
        # Dropped interactions are lost. Discord tells the person that the bot did not respond.
        if self._has_dropped or self._events.full():
            if not self._has_dropped:
                log.warning("events_dropped", reason="the event queue is full; missed messages are fetched later")
            self._has_dropped = True
            channel = str(data.get("channel_id"))
            is_unknown = event == "MESSAGE_CREATE" and channel not in self._positions
            if is_unknown and len(self._first_dropped) < MAX_DROPPED_CHATS:
                self._first_dropped.setdefault(channel, data)
        elif event != "INTERACTION_CREATE" or self._interactions.acknowledge(data):
            self._events.put_nowait((event, data, sequence))

    async def run(self, deliver: Deliver) -> None:
        """Handle events until cancelled."""
        try:
            while True:
                event: str = CatchUpEvent.POSTPONED
                data: Json = {}
                sequence = 0
                if not self._history.is_due:
                    with suppress(TimeoutError):  # Then postponed chats are due.
                        async with asyncio.timeout_at(self._history.due_at):
                            event, data, sequence = await self._events.get()
                await self._handle(event, data, deliver)
                if self._resume_state is not None and sequence:
                    is_complete = not self._history.postponed
                    await self._resume_state.handled(event, data, sequence, is_complete=is_complete)
                if self._has_dropped and self._events.empty():
                    self._has_dropped, dropped, self._first_dropped = False, self._first_dropped, {}
                    await self._handle(CatchUpEvent.DROPPED, dropped, deliver)
        finally:
            # If saving fails, some messages are read again after the next start. The core drops duplicates.
            with suppress(Transient, TimeoutError):
                async with asyncio.timeout(SAVE_TIMEOUT):
                    await asyncio.shield(self._save())

    async def _save(self) -> None:
        await self._positions.save()
        if self._resume_state is not None:
            await self._resume_state.save(is_complete=not self._history.postponed)

    async def _handle(self, event: str, data: Json, deliver: Deliver) -> None:
        """Handle an event, and retry while the error is transient. Later events wait, because order matters."""
        while True:
            try:
                match event:
                    case "READY":  # A new session: the gateway repeats nothing of what happened before.
                        await self._catch_up(self._all_positions(), deliver)
                    case CatchUpEvent.DROPPED:
                        dropped = list[ReadPosition]()
                        for message in data.values():
                            with suppress(Undeliverable):
                                chat = await self._guilds.chat_of(message)
                                dropped.append(ReadPosition(chat=chat, message=int(message["id"]) - 1))
                        await self._catch_up(self._all_positions(dropped), deliver)
                    case CatchUpEvent.POSTPONED:
                        channels = {position.chat.channel for position in self._history.postponed}
                        due = [each for each in self._all_positions() if each.chat.channel in channels]
                        await self._catch_up(due, deliver)
                    case "INTERACTION_CREATE":
                        await self._interactions.handle(data, deliver)
                    case "MESSAGE_UPDATE" if not data.get("edited_timestamp") or "author" not in data:
                        pass  # Not an edit: Discord added a link preview, or a person pinned the message.
                    case _:
                        await self._handle_message(data, await self._guilds.chat_of(data), deliver)
            except NotAccepted as error:  # Discord is fine: the gateway is shutting down, or its disk is full.
                await asyncio.sleep(error.retry_after or RETRY_DELAY)
            except Transient as error:
                self._pulse.down(str(error))
                await asyncio.sleep(error.retry_after or RETRY_DELAY)
            except Undeliverable as refusal:
                log.info("event_skipped", event_type=event, reason=str(refusal))
                return
            else:
                self._pulse.up()
                return

    async def _handle_message(self, message: Json, chat: DiscordChat, deliver: Deliver) -> None:
        bot = dataclasses.replace(self._bot, role=await self._guilds.bot_role(message, chat.guild))
        try:
            inbound = read_message(message, chat, bot)
        except UNREADABLE as error:
            log.warning("message_skipped", chat=chat.channel, reason=f"unreadable payload ({type(error).__name__})")
            inbound = None
        verdict = None
        if inbound is not None:
            if inbound.address.kind is PeerKind.DIRECT:
                self._on_direct_chat(inbound.address.peer, chat.channel)
            verdict = await deliver(inbound)
        is_talked_to = verdict in {Verdict.ACCEPTED, Verdict.DUPLICATE}
        await self._positions.advance(chat, int(message["id"]), is_talked_to=is_talked_to)

    def _all_positions(self, dropped: Iterable[ReadPosition] = ()) -> Iterable[ReadPosition]:
        """Return one position per chat in which messages may have been missed. A saved one wins over the others."""
        candidates = (*dropped, *self._history.postponed, *self._positions)
        return {position.chat.channel: position for position in candidates}.values()

    async def _catch_up(self, positions: Iterable[ReadPosition], deliver: Deliver) -> None:
        """Handle the messages that follow `positions`, in the order in which they were written."""

        async def deliver_as_new(inbound: Inbound) -> Verdict:
            # A missed message that was edited since is new, unless the core has its first version. Delivered only
            # as an edit, it would be answered a second time when the event of its creation comes.
            if inbound.edits is None:
                return await deliver(inbound)
            verdict = await deliver(replace(inbound, event_id=inbound.edits, edits=None))
            return await deliver(inbound) if verdict is Verdict.DUPLICATE else verdict

        found = await self._history.read_missed(positions)
        messages = [(each.position.chat, message) for each in found for message in each.messages]
        if messages:
            log.info("caught_up", channel=self._bot.channel, messages=len(messages))
        for chat, message in sorted(messages, key=lambda each: int(each[1]["id"])):
            await self._handle_message(message, chat, deliver_as_new)
            if message.get("edited_timestamp"):  # If read again after a crash, it would count as an edit of itself.
                await self._positions.save()
        self._history.settle(found)
