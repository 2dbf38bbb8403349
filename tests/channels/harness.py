"""Helpers for tests of a running channel: a pulse that records, and a core that accepts messages."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gateway.contract import Channel, Deliver, Inbound, Verdict
from gateway.errors import NotAccepted
from gateway.testing import NOT_TAKEN
from gateway.testing import Core as ContractCore

TEST_TIMEOUT = 90.0


@dataclass(slots=True)
class PulseRecorder:
    """A pulse that records its states: `up`, or the reason why the channel is down."""

    states: list[str] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def up(self) -> None:
        self.down("up")

    def down(self, reason: str) -> None:
        self.states.append(reason)
        self._changed.set()

    async def wait_for(self, matches: Callable[[str], bool]) -> None:
        """Return once a recorded state matches."""
        while not any(map(matches, self.states)):
            self._changed.clear()
            await self._changed.wait()


@dataclass(slots=True)
class Core:
    """Accepts every message. Raises `errors` first, one for each call."""

    taken: asyncio.Queue[Inbound] = field(default_factory=asyncio.Queue)
    errors: list[Exception] = field(default_factory=list)
    verdict: Verdict = Verdict.ACCEPTED

    async def deliver(self, inbound: Inbound) -> Verdict:
        if self.errors:
            raise self.errors.pop(0)
        await self.taken.put(inbound)
        return self.verdict

    async def next_message(self) -> Inbound:
        async with asyncio.timeout(TEST_TIMEOUT):
            return await self.taken.get()


class RecordingFarSide:
    """A far side that records the outcome of each message by wrapping `deliver`."""

    def __init__(self, channel: Channel, core: ContractCore) -> None:
        self.channel = channel
        self.outcomes: asyncio.Queue[str] = asyncio.Queue()
        self._core = core

    async def deliver(self, inbound: Inbound) -> Verdict:
        try:
            verdict = await self._core.deliver(inbound)
        except NotAccepted:
            await self.outcomes.put(NOT_TAKEN)
            raise
        await self.outcomes.put(verdict)
        return verdict


@asynccontextmanager
async def running(channel: Channel, deliver: Deliver, pulse: PulseRecorder) -> AsyncIterator[None]:
    """Run the channel during the block, which starts when the channel is up."""
    async with asyncio.timeout(TEST_TIMEOUT), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(channel.run(deliver), name="channel")
        await pulse.wait_for("up".__eq__)
        yield
        task.cancel()
