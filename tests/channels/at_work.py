"""What tests have around a channel that is at work: its pulse, and a core that takes its messages."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gateway.contract import Channel, Deliver, Inbound, Verdict
from gateway.errors import Transient
from gateway.testing import NOT_TAKEN
from gateway.testing import Core as ContractCore

__all__ = ["PATIENCE", "Beats", "Core", "ListeningIn", "running"]

PATIENCE = 90.0


@dataclass(slots=True)
class Beats:
    """A pulse that remembers."""

    heard: list[str] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def up(self) -> None:
        self.down("up")

    def down(self, reason: str) -> None:
        self.heard.append(reason)
        self._changed.set()

    async def wait_for(self, is_there: Callable[[str], bool]) -> None:
        while not any(map(is_there, self.heard)):
            self._changed.clear()
            await self._changed.wait()


@dataclass(slots=True)
class Core:
    """Takes every message, unless it has `troubles`, which it raises first."""

    taken: asyncio.Queue[Inbound] = field(default_factory=asyncio.Queue)
    troubles: list[Exception] = field(default_factory=list)
    verdict: Verdict = Verdict.ACCEPTED

    async def deliver(self, inbound: Inbound) -> Verdict:
        if self.troubles:
            raise self.troubles.pop(0)
        await self.taken.put(inbound)
        return self.verdict

    async def heard(self) -> Inbound:
        async with asyncio.timeout(PATIENCE):
            return await self.taken.get()


class ListeningIn:
    """A far side that knows what the core made of each message by listening in on `deliver`."""

    def __init__(self, channel: Channel, core: ContractCore) -> None:
        self.channel = channel
        self.outcomes: asyncio.Queue[str] = asyncio.Queue()
        self._core = core

    async def deliver(self, inbound: Inbound) -> Verdict:
        try:
            verdict = await self._core.deliver(inbound)
        except Transient:
            await self.outcomes.put(NOT_TAKEN)
            raise
        await self.outcomes.put(verdict)
        return verdict


@asynccontextmanager
async def running(channel: Channel, deliver: Deliver, beats: Beats) -> AsyncIterator[None]:
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(channel.run(deliver), name="channel")
        await beats.wait_for("up".__eq__)
        yield
        task.cancel()
