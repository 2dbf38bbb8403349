"""Stateless requests: the agent answers the conversation that the client sends, and nothing is stored but its usage.

They share the slots of turns with the chats of people. A request is cancelled when its client goes away.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from functools import partial
from http import HTTPStatus
from time import monotonic
from uuid import uuid4

import structlog

from config import Backend
from config.types import OPENAI_CHANNEL
from gateway.access.roles import roles_of_all
from gateway.access.rules import Live
from gateway.agent.loop import StepCollector, run_agent
from gateway.agent.protocol import Done, Prompt, StepDone, TextDelta, ToolFinished
from gateway.agent.tools import ToolContext
from gateway.agent.workspace_lock import WorkspaceLocks
from gateway.aio import TurnSlot, finish_before_cancel
from gateway.api.programs import sender_of
from gateway.contract import Address, Inbound, PeerKind
from gateway.conversation import AssistantMessage, Message, UserMessage
from gateway.documents.conversion import DocumentConverter
from gateway.errors import NotAccepted, ProviderFailed, Refused
from gateway.http.responses import HttpError
from gateway.job import JobSlots
from gateway.mcp.server import McpServers
from gateway.openai_door.answer import AnswerText, AnswerTokens, Piece, StreamedAnswer
from gateway.openai_door.errors import failure_of, refusal, too_busy, turn_failed, unavailable
from gateway.openai_door.history_rule import BEGUN_BY_ASSISTANT
from gateway.openai_door.session_choice import SESSION_HEADER, scope_of
from gateway.openai_door.session_turns import DoorRequest
from gateway.placement import Placement
from gateway.sessions.entries import FailureCause
from gateway.spool import Operation, Spool, SpoolUnavailable
from gateway.turns.agents import AgentRegistry, ConfiguredAgent, narrowed
from gateway.turns.context import TurnContext
from gateway.turns.usage import Meter, MeteredProvider, person_of

log = structlog.get_logger()

RETRY_WHEN_FULL = 5.0
"""Seconds between two attempts to store usage while the spool is unavailable."""
MAX_UNSTORED = 1_000
"""Requests whose usage may wait for a full disk. Beyond that, more are refused."""


class StatelessRuns:
    def __init__(
        self,
        *,
        live: Live,
        agents: AgentRegistry,
        mcp: McpServers,
        context: TurnContext,
        meter: Meter,
        spool: Spool,
        placement: Placement,
        slots: JobSlots,
        locks: WorkspaceLocks,
        documents: DocumentConverter,
        now: Callable[[], datetime],
    ) -> None:
        self._live = live
        self._agents = agents
        self._mcp = mcp
        self._context = context
        self._meter = meter
        self._spool = spool
        self._placement = placement
        self._slots = slots
        self._locks = locks
        self._documents = documents
        self._now = now
        # Slots are served in the order of requests. Programs stand in line for half of them at most, so that a message
        # of a person never waits behind hundreds of their requests.
        self._share = asyncio.Semaphore(max(1, live.settings.gateway.max_parallel_turns // 2))
        self._running: set[asyncio.Task[object]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_closed = False
        self._charges: list[Operation] = []
        """Usage that is not stored yet. It counts for the limits already."""
        self._has_charges = asyncio.Event()

    @asynccontextmanager
    async def open(self, request: DoorRequest) -> AsyncIterator[StreamedAnswer]:
        """Wait for a slot, and yield the answer to a request. Raises `HttpError`."""
        if self._is_closed:
            raise unavailable("The gateway is shutting down. Try again in a moment.")
        if len(self._charges) >= MAX_UNSTORED:
            raise unavailable("The disk of the gateway is full. Try again later.")
        if len(self._running) >= self._live.settings.gateway.max_queued:
            raise too_busy(f"{len(self._running)} requests are waiting for an answer. Try again later.")
        self._require_labels(request)
        limit = self._live.settings.gateway.turn_timeout
        await self._agents.refresh_skills()
        agent, inbound, scope = self._agent_for(request)
        roles = partial(roles_of_all, self._live, [inbound])
        token = self._live.token_book.find(request.caller.token)
        limits = partial(self._context.check_roles, agent, roles, [token.repo if token is not None else None])
        provider = self._meter.open_provider(agent, person_of(self._live.settings, inbound), limits=limits)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a handler runs in a task.
        self._running.add(task)
        self._idle.clear()
        began, outcome = monotonic(), "stopped"
        try:
            async with TurnSlot(limit, self._share, *self._slots.turn):
                yield StreamedAnswer(
                    name=uuid4().hex,
                    created=int(self._now().timestamp()),
                    session=None,
                    pieces=self._pieces(request, agent, provider, inbound, scope),
                )
            outcome = "answered"
        except HttpError:
            outcome = "failed"
            raise
        except TimeoutError:
            outcome = "failed"
            raise turn_failed(
                FailureCause.TIMEOUT, f"This took longer than {limit:g} seconds, so it was stopped."
            ) from None
        finally:
            self._charges += provider.usage.uncommitted
            self._has_charges.set()
            self._running.discard(task)
            if not self._running:
                self._idle.set()
            took_ms = round((monotonic() - began) * 1000, 1)
            log.info("request_handled", agent=agent.name, by=request.caller.name, outcome=outcome, took_ms=took_ms)

    def _require_labels(self, request: DoorRequest) -> None:
        """Raise `HeldElsewhere` if the tools of the agent can only work at another node of a cluster."""
        token = self._live.token_book.find(request.caller.token)
        needed = self._placement.needed(request.choice.agent, token.repo if token is not None else None)
        try:
            self._placement.require_anywhere(needed)
        except NotAccepted as error:
            raise unavailable(str(error)) from error

    def _agent_for(self, request: DoorRequest) -> tuple[ConfiguredAgent, Inbound, str]:
        """Return the agent with its workspace, the request as if it were a message, and its scope."""
        caller, choice = request.caller, request.choice
        token = self._live.token_book.find(caller.token)
        scope = scope_of(caller, choice.agent).scope
        sender = sender_of(caller)
        inbound = Inbound(
            address=Address(channel=OPENAI_CHANNEL, kind=PeerKind.DIRECT, peer=sender.id),
            sender=sender,
            event_id="",
            text="",
            sent_at=self._now(),
            is_prompt=True,
            instructions=request.received.instructions,
        )
        if self._live.settings.agents[choice.agent].backend is Backend.ACP:
            raise refusal(
                f"The agent `{choice.agent}` works in a repository and needs a session. "
                f"Name one: use the model `{choice.agent}@<name>`, or send the header {SESSION_HEADER}.",
                param="model",
            )
        agent = self._agents.in_scope(choice.agent, scope, repo=token.repo if token is not None else None)
        try:
            agent = narrowed(agent, partial(roles_of_all, self._live, [inbound]))
        except Refused as refused:
            raise refusal(str(refused), param="model", status=HTTPStatus.FORBIDDEN) from refused
        if not agent.info.sees_images and any(message.pictures for message in request.received.messages):
            raise refusal(f"The model of the agent `{agent.name}` doesn't accept images.", param="messages")
        return agent, inbound, scope

    async def _pieces(
        self, request: DoorRequest, agent: ConfiguredAgent, provider: MeteredProvider, inbound: Inbound, scope: str
    ) -> AsyncGenerator[Piece, None]:
        if self._mcp.servers:
            await self._mcp.wait_ready()
        messages: tuple[Message, ...] = request.received.messages
        if isinstance(messages[0], AssistantMessage):
            messages = (UserMessage(text=BEGUN_BY_ASSISTANT, is_ours=True), *messages)
        prompt = Prompt(
            system=await self._context.system_prompt(inbound, scope, agent),
            messages=messages,
            tools=request.tools or agent.toolbox.specs(),
            model=agent.chosen_model,
        )
        provider.history_size = len(messages) - 1 if request.may_shorten else 0
        run = self._step(prompt, provider) if request.tools else self._agent_loop(prompt, agent, provider, scope)
        try:
            async with aclosing(run) as pieces:
                async for piece in pieces:
                    yield piece
        except (ProviderFailed, Refused) as failure:
            raise failure_of(failure) from failure

    async def _step(self, prompt: Prompt, provider: MeteredProvider) -> AsyncGenerator[Piece, None]:
        """Run one step of the model with the tools of the client, which runs them itself."""
        step, tokens = StepCollector(), AnswerTokens()
        async with aclosing(provider.stream(prompt)) as chunks:
            async for chunk in chunks:
                if delta := step.add(chunk):
                    yield delta
        done = step.result()
        for call in done.tool_calls:
            yield call
        yield tokens if done.usage is None else tokens.plus(done.usage)

    async def _agent_loop(
        self, prompt: Prompt, agent: ConfiguredAgent, provider: MeteredProvider, scope: str
    ) -> AsyncGenerator[Piece, None]:
        """Run the agent with its own tools. Tools that a person would have to approve are denied."""
        tools = ToolContext(
            workspace=agent.workspace.path,
            is_private=agent.workspace.is_private,
            find_skills=lambda: agent.skills().folders,
            locks=self._locks,
            memory=self._context.memory_folder(scope),
            now=self._context.now,
            documents=self._documents,
        )
        answer, tokens = AnswerText(), AnswerTokens()
        events = run_agent(
            prompt, provider=provider, toolbox=agent.toolbox, context=tools, max_iterations=agent.max_iterations
        )
        async with aclosing(events):
            async for event in events:
                text = ""
                match event:
                    case TextDelta():
                        text = answer.add(event.text)
                    case StepDone():
                        tokens = tokens if event.usage is None else tokens.plus(event.usage)
                        if event.tool_calls:
                            text = answer.end_step(event.text)
                    case ToolFinished():  # It may have written a note.
                        await self._context.memory_may_have_changed(scope)
                    case Done():
                        text = answer.end_step(event.text)
                    case _:
                        pass
                if text:
                    yield TextDelta(text=text)
        yield tokens

    async def run(self) -> None:
        """Store the usage of requests, also of those that were cancelled, until cancelled itself.

        Responses do not wait for that, and many of them share a commit.
        """
        while True:
            await self._has_charges.wait()
            if not await self.store_usage():
                await asyncio.sleep(RETRY_WHEN_FULL)

    async def store_usage(self) -> bool:
        """Store the usage of all requests that have ended. Returns False if nothing can be stored now."""
        charges: list[Operation] = [*self._charges, *self._meter.learned()]
        self._charges.clear()
        self._has_charges.clear()
        try:
            await finish_before_cancel(self._spool.commit(*charges))
        except SpoolUnavailable:
            self._charges[:0] = charges
            self._has_charges.set()
            return False
        return True

    async def drained(self) -> None:
        """Wait until no request runs."""
        await self._idle.wait()

    def stop(self) -> None:
        """Take no more requests, and cancel those that run. Their usage is stored."""
        self._is_closed = True
        for task in self._running:
            task.cancel()
