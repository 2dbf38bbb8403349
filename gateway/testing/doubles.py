"""Test doubles for the parts of the core that a channel uses. They record their calls."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from config import ChannelSettings
from gateway.adapters.services import InMemoryStore
from gateway.contract import (
    Address,
    Browser,
    ChannelContext,
    CommandInfo,
    Deliver,
    EarlierMessage,
    Inbound,
    Line,
    OpenQuestion,
    Pulse,
    Sender,
    SessionInfo,
    Verdict,
)


@dataclass(slots=True)
class StubBrowser:
    """Returns the values that it was created with."""

    infos: list[SessionInfo] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    open_questions: list[OpenQuestion] = field(default_factory=list)
    earlier_messages: dict[str, EarlierMessage] = field(default_factory=dict)
    """By their event ids."""
    asked_for: list[tuple[Address, Sender]] = field(default_factory=list)

    def sessions(self, address: Address, sender: Sender, _guild: str | None = None) -> list[SessionInfo]:
        self.asked_for.append((address, sender))
        return self.infos

    async def history(self, address: Address, sender: Sender, *, limit: int) -> list[Line]:
        self.asked_for.append((address, sender))
        return self.lines[-limit:]

    def questions(self, _address: Address, _sender: Sender) -> list[OpenQuestion]:
        return self.open_questions

    async def earlier(self, _address: Address, _sender: Sender, event_id: str) -> EarlierMessage:
        return self.earlier_messages.get(event_id, EarlierMessage())

    def commands(self, _address: Address | None = None, _sender: Sender | None = None) -> list[CommandInfo]:
        return [CommandInfo(name="new", arguments="[title]", summary="Start a new conversation")]

    def max_message_chars(self) -> int:
        return 32_000


@dataclass(slots=True)
class StubPulse:
    """Sets `beats` when the channel is up. Fails the test if the channel goes down."""

    beats: asyncio.Event = field(default_factory=asyncio.Event)

    def up(self) -> None:
        self.beats.set()

    def down(self, reason: str) -> None:
        raise AssertionError(reason)


@dataclass(slots=True)
class Core:
    """Accepts every message, or returns or raises `verdict`. Clear `gate` to make `deliver` wait until it is set."""

    taken: list[Inbound] = field(default_factory=list)
    verdict: Verdict | Exception = Verdict.ACCEPTED
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    has_arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    async def deliver(self, inbound: Inbound) -> Verdict:
        self.taken.append(inbound)
        self.has_arrived.set()
        await self.gate.wait()
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict


def context(name: str, browser: Browser, pulse: Pulse, settings: ChannelSettings | None = None) -> ChannelContext:
    """Return a context to open a channel with. Its notebook is in memory."""
    return ChannelContext(
        name=name,
        account="default",
        settings=settings or ChannelSettings(),
        browser=browser,
        notebook=InMemoryStore(),
        pulse=pulse,
    )


class _Runs(Protocol):
    async def run(self, deliver: Deliver) -> None: ...


@asynccontextmanager
async def running(channel: _Runs, deliver: Deliver, pulse: StubPulse) -> AsyncIterator[None]:
    """Run `channel` while the context is open. It is up when the block starts."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(channel.run(deliver), name="channel")
        await pulse.beats.wait()
        yield
        task.cancel()
