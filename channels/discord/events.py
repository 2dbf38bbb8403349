"""The way in: takes Discord's events in their order, one by one, and catches up on what the gateway did not tell."""

import asyncio
import dataclasses
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

import structlog
from msgspec.structs import replace

from channels.discord.cache import Places
from channels.discord.catchup import Backlog, Chat, Chats
from channels.discord.gateway_connection import Frame
from channels.discord.interactions import Interactions
from channels.discord.wire import BotIdentity, Place, read
from gateway.contract import Deliver, Inbound, PeerKind, Pulse, Verdict
from gateway.errors import Transient, Undeliverable

log = structlog.get_logger()

WAITING = 2_000
"""Events that may wait to be taken; what comes then is dropped here, and caught up on when there is room."""
AGAIN = 1.0
"""Seconds after which a message is offered again that the core could not take."""
DROPPED = 200
"""Chats of which it is known that something was dropped, besides those that are known anyway."""
BEHIND, GAP = "BEHIND", "GAP"
"""Events of our own."""
WANTED = {"MESSAGE_CREATE", "MESSAGE_UPDATE", "INTERACTION_CREATE", "READY"}


class Reader:
    def __init__(
        self,
        *,
        bot: BotIdentity,
        chats: Chats,
        backlog: Backlog,
        places: Places,
        interactions: Interactions,
        pulse: Pulse,
        learn: Callable[[str, str], None],
    ) -> None:
        self._bot = bot
        self._chats = chats
        self._backlog = backlog
        self._places = places
        self._interactions = interactions
        self._pulse = pulse
        self._learn = learn
        self._events: asyncio.Queue[tuple[str, Frame]] = asyncio.Queue(WAITING)
        self._has_gap = False
        self._dropped: dict[str, Frame] = {}
        """The first message that was dropped of each chat that is not known."""

    def hear(self, event: str, data: Frame) -> None:
        """Queue an event; a press or a slash command is acknowledged on the spot, since Discord waits for that."""
        if event not in WANTED:
            self._places.hear(event, data)
            return
        if self._has_gap or self._events.full():  # What comes later must not be taken before what was dropped.
            self._drop(event, data)
            return
        if event != "INTERACTION_CREATE" or self._interactions.acknowledge(data):
            self._events.put_nowait((event, data))

    def _drop(self, event: str, data: Frame) -> None:
        if not self._has_gap:
            log.warning("events_dropped", reason="more come in than can be taken; they are caught up on later")
        self._has_gap = True
        channel = str(data.get("channel_id"))
        if event == "MESSAGE_CREATE" and channel not in self._chats and len(self._dropped) < DROPPED:
            self._dropped.setdefault(channel, data)

    async def run(self, deliver: Deliver) -> None:
        """Take events until cancelled."""
        try:
            while True:
                event, data = await self._next()
                await self._insist(event, data, deliver)
                if self._has_gap and self._events.empty():
                    self._has_gap, dropped, self._dropped = False, self._dropped, {}
                    await self._insist(GAP, dropped, deliver)
        finally:
            with suppress(Transient):  # What is not written down now comes again after the next start, to no effect.
                await asyncio.shield(self._chats.save())

    async def _next(self) -> tuple[str, Frame]:
        """Return the next event, or that it is time to see to the chats that are behind."""
        if self._backlog.is_due:
            return BEHIND, {}
        try:
            async with asyncio.timeout_at(self._backlog.due_at):
                return await self._events.get()
        except TimeoutError:
            return BEHIND, {}

    async def _insist(self, event: str, data: Frame, deliver: Deliver) -> None:
        """Take an event, as often as it needs; those behind it wait, since their order counts."""
        while True:
            try:
                await self._take(event, data, deliver)
            except Transient as trouble:
                self._pulse.down(str(trouble))
                await asyncio.sleep(trouble.retry_after or AGAIN)
            except Undeliverable as refusal:
                log.info("event_skipped", event_type=event, reason=str(refusal))
                return
            else:
                self._pulse.up()
                return

    async def _take(self, event: str, data: Frame, deliver: Deliver) -> None:
        match event:
            case "READY":
                await self._catch_up(self._all(), deliver)
            case _ if event == GAP:
                await self._catch_up(self._all(await self._ahead_of(data.values())), deliver)
            case _ if event == BEHIND:
                behind = {chat.place.channel for chat in self._backlog.behind}
                await self._catch_up([chat for chat in self._all() if chat.place.channel in behind], deliver)
            case "INTERACTION_CREATE":
                await self._interactions.take(data, deliver)
            case "MESSAGE_UPDATE" if not data.get("edited_timestamp") or "author" not in data:
                return  # A preview was added, or a pin: nobody has written anything.
            case _:
                await self._take_message(data, await self._places.of(data), deliver)

    async def _take_message(self, message: Frame, place: Place, deliver: Deliver) -> None:
        bot = dataclasses.replace(self._bot, role=await self._places.own_role(message, place.guild))
        inbound = _read(message, place, bot)
        verdict = None
        if inbound is not None:
            self._learn_from(inbound, place)
            verdict = await deliver(inbound)
        is_talked_to = verdict in {Verdict.ACCEPTED, Verdict.DUPLICATE}
        await self._chats.advance(place, int(message["id"]), is_talked_to=is_talked_to)

    def _learn_from(self, inbound: Inbound, place: Place) -> None:
        if inbound.address.kind is PeerKind.DIRECT:
            self._learn(inbound.address.peer, place.channel)

    def _all(self, others: Iterable[Chat] = ()) -> Iterable[Chat]:
        """Return each chat in which something may have been missed: what is known of its place goes before `others`."""
        return {chat.place.channel: chat for chat in (*others, *self._backlog.behind, *self._chats)}.values()

    async def _ahead_of(self, dropped: Iterable[Frame]) -> list[Chat]:
        """Return the chats of these messages, read up to right ahead of them."""
        found = list[Chat]()
        for message in dropped:
            with suppress(Undeliverable):
                found.append(Chat(place=await self._places.of(message), read=int(message["id"]) - 1))
        return found

    async def _catch_up(self, chats: Iterable[Chat], deliver: Deliver) -> None:
        """Take what was written in `chats` since; the gateway repeats nothing to a new session."""
        found = await self._backlog.missed(chats)
        messages = [(each.chat.place, message) for each in found for message in each.messages]
        if messages:
            log.info("caught_up", channel=self._bot.channel, messages=len(messages))
        for place, message in sorted(messages, key=lambda each: int(each[1]["id"])):
            await self._take_message(message, place, partial(_as_new, deliver))
            if message.get("edited_timestamp"):  # Read once more, it would be an edit of itself.
                await self._chats.save()
        self._backlog.settle(found)


def _read(message: Frame, place: Place, bot: BotIdentity) -> Inbound | None:
    """Read a message; one that is newer than this code must not hold up the others."""
    try:
        return read(message, place, bot)
    except (KeyError, TypeError, ValueError, AttributeError) as strange:
        log.warning("message_skipped", chat=place.channel, reason=f"it cannot be read ({type(strange).__name__})")
        return None


async def _as_new(deliver: Deliver, inbound: Inbound) -> Verdict:
    """Hand over what was missed. Though it was edited meanwhile, it is new, unless the core has it as it was before."""
    if inbound.edits is None:
        return await deliver(inbound)
    verdict = await deliver(replace(inbound, event_id=inbound.edits, edits=None))
    return await deliver(inbound) if verdict is Verdict.DUPLICATE else verdict
