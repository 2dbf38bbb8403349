"""Delivery: brings what is to be said to its chat, in order, in parts that fit, trying again while that can help."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from itertools import islice
from weakref import WeakValueDictionary

import structlog

from gateway.backoff import backoff
from gateway.contract import Address, Channel, Drafts, OffersButtons, Outbound, ShowsTyping
from gateway.errors import ChannelError, Transient, Undeliverable
from gateway.text import split

__all__ = ["Delivery", "Draft"]

log = structlog.get_logger()

ATTEMPTS = 8
"""With waits that double from half a second, a peer may be away for about a minute before a message is given up."""

SEND_DEADLINE = 60.0
TYPING_INTERVAL = 4.0
"""Platforms show "typing" for about five seconds."""


class Draft:
    """The newest state of an answer that is being written; only the newest is worth showing."""

    def __init__(self) -> None:
        self.text = ""
        self._changed = asyncio.Event()

    def show(self, text: str) -> None:
        self.text = text
        self._changed.set()

    async def next(self) -> str:
        await self._changed.wait()
        self._changed.clear()
        return self.text


class Delivery:
    def __init__(
        self,
        channels: Mapping[tuple[str, str], Channel],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._channels = channels
        self._sleep = sleep
        # A chat's lock lives as long as somebody waits for it or holds it, so there are never more locks than sends.
        self._turnstiles: WeakValueDictionary[Address, asyncio.Lock] = WeakValueDictionary()

    async def say(self, message: Outbound, *, key: str) -> bool:
        """Send `message` in as many parts as its channel needs; tell whether all of it arrived."""
        channel = self._channels.get((message.address.channel, message.address.account))
        if channel is None:
            log.warning("message_undeliverable", channel=message.address.channel, reason="the channel is not enabled")
            return False
        turnstile = self._turnstiles.setdefault(message.address, asyncio.Lock())
        async with turnstile:
            for number, part in enumerate(_parts(message, channel)):
                if not await self._send(channel, part, key=key if number == 0 else f"{key}.{number}"):
                    return False
        return True

    async def _send(self, channel: Channel, part: Outbound, *, key: str) -> bool:
        trouble: ChannelError | None = None
        for wait in islice(backoff(), ATTEMPTS):
            try:
                async with asyncio.timeout(SEND_DEADLINE):
                    await channel.send(part, key=key)
            except Undeliverable as refusal:
                trouble = refusal
                break
            except (Transient, TimeoutError) as passing:
                trouble = (
                    passing if isinstance(passing, Transient) else Transient("the platform did not answer in time")
                )
                await self._sleep(trouble.retry_after or wait)
            else:
                return True
        log.error("message_undeliverable", channel=channel.name, chat=part.address.peer, key=key, reason=str(trouble))
        return False

    @contextlib.asynccontextmanager
    async def drafting(self, template: Outbound, *, key: str) -> AsyncIterator[Draft]:
        """While inside, show the draft and a sign of life where the channel can; leaving stops both."""
        channel = self._channels.get((template.address.channel, template.address.account))
        draft = Draft()
        failure: Exception | None = None
        async with asyncio.TaskGroup() as group:
            signs: list[asyncio.Task[None]] = []
            if isinstance(channel, Drafts):
                signs.append(group.create_task(self._show(channel, draft, template, key), name=f"draft:{key}"))
            if isinstance(channel, ShowsTyping):
                signs.append(group.create_task(self._type(channel, template.address), name=f"typing:{key}"))
            try:
                yield draft
            except Exception as error:  # noqa: BLE001 - raised below, outside of the group, which would wrap it in a group of its own.
                failure = error
            finally:
                for sign in signs:
                    sign.cancel()
        if failure is not None:
            raise failure

    async def _show(self, channel: Drafts, draft: Draft, template: Outbound, key: str) -> None:
        while True:
            text = await draft.next()
            with contextlib.suppress(ChannelError):  # A draft may be lost; the whole answer follows.
                await channel.draft(replace(template, text=text), key=key)
            await self._sleep(channel.draft_pace)

    async def _type(self, channel: ShowsTyping, address: Address) -> None:
        while True:
            with contextlib.suppress(ChannelError):  # As with drafts.
                await channel.show_typing(address)
            await self._sleep(TYPING_INTERVAL)


def _parts(message: Outbound, channel: Channel) -> list[Outbound]:
    """Cut `message` to the platform's measure; the buttons hang on the last part."""
    limit = channel.text_limit
    texts = split(message.text, limit.size, limit.measure)
    buttons = message.buttons[: channel.max_buttons] if isinstance(channel, OffersButtons) else ()
    parts = [replace(message, text=text, buttons=()) for text in texts]
    return [*parts[:-1], *(replace(last, buttons=buttons) for last in parts[-1:])]
