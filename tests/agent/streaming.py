"""Running one step of a model against a local server, for tests."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from config import ProviderSettings
from gateway.agent.protocol import Chunk, Prompt, Provider, TextDelta, TokenUsage, ToolSpec
from gateway.agent.providers.registry import ProviderRegistry
from gateway.conversation import Message, Thought, ToolCall, UserMessage
from tests.agent.wire import Dialect, Reply, WireServer, serving

LOOK = ToolSpec(name="look", description="Look.", schema={"type": "object", "properties": {"at": {"type": "string"}}})
HELLO: tuple[Message, ...] = (UserMessage(text="hello"),)


@dataclass(slots=True)
class Said:
    """What came of a step, or of what of it came."""

    chunks: list[Chunk] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks if isinstance(chunk, TextDelta))

    @property
    def calls(self) -> list[ToolCall]:
        return [chunk for chunk in self.chunks if isinstance(chunk, ToolCall)]

    @property
    def usage(self) -> TokenUsage | None:
        return next((chunk for chunk in self.chunks if isinstance(chunk, TokenUsage)), None)

    @property
    def thoughts(self) -> tuple[Thought, ...]:
        return tuple(chunk for chunk in self.chunks if isinstance(chunk, Thought))


async def at_once(_seconds: float) -> None:
    await asyncio.sleep(0)


@asynccontextmanager
async def model(dialect: Dialect, *script: Reply, **table: Any) -> AsyncIterator[tuple[Provider, WireServer]]:  # noqa: ANN401 - as in TOML
    """Give the model `fake/m` of a server that plays `script`, as an agent is given it."""
    async with serving(dialect, *script) as server:
        providers = ProviderRegistry({"fake": ProviderSettings.model_validate(server.table(**table))}, sleep=at_once)
        try:
            yield providers.for_agent("fake", "m", ()), server
        finally:
            await providers.aclose()


async def step(provider: Provider, messages: Sequence[Message] = HELLO, said: Said | None = None) -> Said:
    """Run a step; a `said` that is given has what came before an error."""
    said = said or Said()
    async for chunk in provider.stream(Prompt(system="Be brief.", messages=messages, tools=[LOOK])):
        said.chunks.append(chunk)
    return said
