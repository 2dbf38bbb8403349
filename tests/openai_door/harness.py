"""Set-up shared by tests of the OpenAI-compatible door: a daemon, a model that echoes, and OpenAI's own client."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from config import Settings
from gateway.agent.models import ModelInfo
from gateway.agent.protocol import Chunk, Prompt, TextDelta, TokenUsage
from gateway.contract import TokenScope
from gateway.conversation import AssistantMessage, ToolCall, UserMessage
from gateway.daemon import Daemon
from gateway.errors import ProviderFailed
from gateway.sessions import SessionMeta, entries
from tests.api.harness import Api, api
from tests.daemon.harness import settings


@dataclass
class Echo:
    """A model that repeats the last message, in two pieces, once `may_answer` is set. `prompts` has what it got."""

    prompts: list[Prompt] = field(default_factory=list)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    is_asked: asyncio.Event = field(default_factory=asyncio.Event)
    was_stopped: asyncio.Event = field(default_factory=asyncio.Event)
    failures: list[ProviderFailed] = field(default_factory=list)
    """Raised by the next requests, one each."""
    calls: list[list[ToolCall]] = field(default_factory=list)
    """The tool calls of the next answers."""
    tokens: tuple[int, int] = (11, 7)

    def __post_init__(self) -> None:
        self.may_answer.set()

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        self.prompts.append(prompt)
        self.is_asked.set()
        if self.failures:
            raise self.failures.pop(0)
        calls = self.calls.pop(0) if self.calls else []
        said = [each.text for each in prompt.messages if isinstance(each, UserMessage)][-1]
        try:
            yield TextDelta(text="You said: ")
            await self.may_answer.wait()
        except (asyncio.CancelledError, GeneratorExit):
            self.was_stopped.set()
            raise
        yield TextDelta(text=said)
        for call in calls:
            yield call
        yield TokenUsage(input_tokens=self.tokens[0], output_tokens=self.tokens[1], cache_read_tokens=3)

    def said(self, number: int = -1) -> list[str]:
        """Return the texts of the conversation in a prompt."""
        return [each.text for each in self.prompts[number].messages if isinstance(each, UserMessage | AssistantMessage)]

    def install(self, daemon: Daemon, agent: str = "main", *, sees_images: bool = True) -> None:
        info = ModelInfo(name="echo", context_tokens=100_000, max_output_tokens=1_000, sees_images=sees_images)
        daemon.agents.replace(agent, lambda known: replace(known, provider=self, model="echo", info=info))


@dataclass(frozen=True, kw_only=True)
class DoorTest:
    program: Api
    model: Echo
    openai: AsyncOpenAI

    @property
    def daemon(self) -> Daemon:
        return self.program.daemon

    async def ask(self, text: str, model: str = "main", **more: Any) -> str:  # noqa: ANN401 - as the client takes them.
        """Send one message, and return the answer."""
        return await self.chat([("user", text)], model, **more)

    async def chat(self, messages: list[tuple[str, str]], model: str = "main", **more: Any) -> str:  # noqa: ANN401 - as above.
        """Send messages, given as roles and texts, and return the answer."""
        sent: Any = [{"role": role, "content": text} for role, text in messages]
        completion = await self.openai.chat.completions.create(model=model, messages=sent, **more)
        return completion.choices[0].message.content or ""

    def sessions(self) -> list[SessionMeta]:
        """Return the sessions of the door."""
        return [
            session
            for scope in self.daemon.sessions.scopes()
            for session in self.daemon.sessions.list(scope)
            if session.channel == "openai"
        ]

    async def texts(self, session: SessionMeta | None = None) -> list[str]:
        """Return the messages of a session, by default of the only one."""
        (only,) = [session] if session is not None else self.sessions()
        found = self.daemon.sessions.entries(only.key)
        return [entry.content async for entry in found if isinstance(entry, entries.User | entries.Assistant)]

    @asynccontextmanager
    async def client(self, *scopes: TokenScope, **more: object) -> AsyncIterator["DoorTest"]:
        """Use the same daemon with another token."""
        other = await self.program.token_for(*(scopes or (TokenScope.PROMPT,)), **more)
        async with _client(other) as openai:
            yield DoorTest(program=other, model=self.model, openai=openai)


def _client(program: Api) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{program.daemon.server.url}/v1", api_key=program.token, max_retries=0)


@asynccontextmanager
async def door(
    folder: Path,
    configured: Settings | None = None,
    *,
    prepare: Callable[[Daemon], None] = lambda _: None,
    **tables: Any,  # noqa: ANN401 - tables of any shape.
) -> AsyncIterator[DoorTest]:
    model = Echo()

    def before(daemon: Daemon) -> None:
        model.install(daemon)
        prepare(daemon)

    async with api(configured or settings(folder, **tables), before) as program, _client(program) as openai:
        yield DoorTest(program=program, model=model, openai=openai)
