"""The pool of running coding agents: one program for each session that uses one, within the limits of the settings."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from contextvars import Context
from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct

from config import AgentSettings
from gateway.access.rules import Live
from gateway.acp.homes import AgentHomes, AgentRecord
from gateway.acp.launch import AgentLaunch
from gateway.acp.presets import effective
from gateway.acp.programs import AgentProgram, ProgramMissing, find_program
from gateway.agent.protocol import Event, TokenUsage
from gateway.conversation import Message, ToolCall
from gateway.errors import Refused
from gateway.files.store import FileStore
from gateway.repos.worktrees import Worktrees
from gateway.sessions import Entry, SessionManager, SessionMeta, SessionStatus, entries

if TYPE_CHECKING:  # They import the SDK, which takes half a second and 30 MB.
    from gateway.acp.acp_session import Start
    from gateway.acp.agent import CodingAgent

log = structlog.get_logger()

STOP_TIMEOUT = 10.0
"""Seconds that all programs together get to end, when the daemon stops."""


class CodingTurn(Struct, frozen=True, kw_only=True):
    """The turn as the session has it."""

    messages: Sequence[Message]
    """Those of the turn itself, with the steps that were finished before a restart."""
    before: Sequence[Message]
    is_resumed: bool = False
    open_calls: Sequence[ToolCall] = ()
    """Calls without a result from before a restart, in a turn that was waiting for a person."""
    asked: str = ""
    """The id of the one that a person was asked about. The program has got the answers to all questions before."""
    system: str = ""
    """The system prompt of the settings, for a program that has no record of the session."""
    instructions: str = ""
    """What a program wants the agent to know about its message."""


class TurnHooks(Struct, frozen=True, kw_only=True):
    """What the turn runner does for a turn."""

    ask: Callable[[ToolCall, asyncio.Event | None], Awaitable[bool]]
    """Asks a person whether a call may run, until the event is set: then the program that has asked is gone."""
    may_always: Callable[[ToolCall], bool]
    """Whether the settings let such calls be allowed for good."""
    new_messages: Callable[[], Awaitable[Sequence[Message]]]
    """Takes the messages that have come during the turn into it, where the busy mode says so."""
    charge: Callable[[TokenUsage], None]
    show: Callable[[str], None]
    """Shows a sentence in the draft, such as that the program starts."""
    paused: Callable[[], AbstractAsyncContextManager[None]]
    """While inside, the turn leaves its slot to others, and its time stops."""
    tell: Callable[[str], Awaitable[None]]
    """Records a sentence for the person that stays in the answer."""


class _Member(Struct, kw_only=True, eq=False):
    """A program of the pool. It follows its session, and ends with it."""

    program: "CodingAgent"
    seen: int
    """The `seq` of the last entry of the session that the program knows."""
    is_recorded: bool = False
    """Whether its ACP session is stored, so that another program can load it."""
    is_used: bool = True
    used_at: float = 0.0

    def on_entries(self, written: Sequence[Entry]) -> None:
        is_over = any(isinstance(each, entries.Status) and each.value is not SessionStatus.ACTIVE for each in written)
        if is_over and not self.is_used:  # Otherwise it ends with the turn.
            self.program.end()

    def on_text(self, turn: str, delta: str) -> None:
        pass

    def on_removed(self) -> None:
        self.program.end()


class CodingAgents:
    """Starts the program of a session with its first turn, and ends it with the session.

    A program also ends when `max_active` others of the same agent need its place. The next turn starts it again.
    """

    def __init__(
        self, *, live: Live, sessions: SessionManager, store: FileStore, homes: AgentHomes, worktrees: Worktrees
    ) -> None:
        self._live = live
        self._sessions = sessions
        self._store = store
        self._homes = homes
        self._worktrees = worktrees
        self._members: dict[str, _Member] = {}
        """By the key of the session."""
        self._reserved: dict[str, str] = {}
        """The agents of the sessions whose program is about to be started."""
        self._changed = asyncio.Condition()
        self._tasks: asyncio.TaskGroup
        self._is_stopping = False
        homes.before_removal = self.end
        worktrees.before_removal = self.end

    def open(self, tasks: asyncio.TaskGroup) -> None:
        """Start programs in `tasks` from now on."""
        self._tasks = tasks

    @property
    def sessions(self) -> list[str]:
        """The keys of the sessions whose programs run."""
        return list(self._members)

    @property
    def running(self) -> Counter[str]:
        """How many programs run, by agent."""
        return Counter(member.program.launch.agent for member in self._members.values())

    async def run_turn(
        self,
        session: SessionMeta,
        agent: str,
        model: str | None,
        turn: CodingTurn,
        hooks: TurnHooks,
    ) -> AsyncGenerator[Event, None]:
        """Run one turn in a session. Raises what `run_coding_turn` raises."""
        module = await asyncio.to_thread(import_module, "gateway.acp.turn")
        program = self._using(session, agent, model, hooks)
        async with aclosing(module.run_coding_turn(turn, program, hooks)) as events:
            async for event in events:
                yield event

    @asynccontextmanager
    async def _using(
        self, session: SessionMeta, agent: str, model: str | None, hooks: TurnHooks
    ) -> "AsyncIterator[tuple[CodingAgent, Start]]":
        """Yield the program of a session, ready for a prompt. While inside, only the end of the session ends it."""
        member = await self._find(session, agent, model)
        if member is None:
            member = await self._start(session, agent, model, hooks)
        program = member.program
        try:
            start = await program.ready()
            if not member.is_recorded:
                record = AgentRecord(agent=agent, acp_session=program.session.id, since=member.seen)
                member.is_recorded = await asyncio.to_thread(self._homes.write, session.key, record)
            yield program, start
        finally:
            member.is_used, member.used_at = False, monotonic()
            current = self._sessions.find(session.key)
            is_removed = agent not in self._live.settings.agents
            if current is not None and current.status is SessionStatus.ACTIVE and not is_removed:
                member.seen = current.seq
            else:
                program.end()
            await self._notify()

    async def _find(self, session: SessionMeta, agent: str, model: str | None) -> _Member | None:
        """Return the running program of a session. One that cannot be used any more is ended first."""
        member = self._members.get(session.key)
        if member is None:
            return None
        launch = member.program.launch
        is_same = (launch.agent, launch.settings) == (agent, self._settings(agent, model))
        is_same = is_same and await self._worktrees.is_current(session, launch.workspace)
        if is_same and not await self._has_diverged(session.key, member.seen) and await member.program.settle():
            member.is_used = True
            return member
        await self.end(session.key)
        return None

    async def _start(self, session: SessionMeta, agent: str, model: str | None, hooks: TurnHooks) -> _Member:
        """Start the program of a session, once there is room for it."""
        key, settings = session.key, self._settings(agent, model)
        try:
            if self._has_room(agent, settings.max_active):
                self._reserved[key] = agent
            else:
                # Those that have the room may need the slot to go on, when a person has answered them.
                async with hooks.paused():
                    await self._make_room(key, agent, settings.max_active, hooks.show)
            hooks.show(f"Starting {agent} …")
            launch = await self._prepare(session, agent, settings)
            from gateway.acp.agent import CodingAgent  # noqa: PLC0415 - loaded by now, with the turn.

            member = _Member(program=CodingAgent(launch), seen=session.seq)
            self._members[key] = member
        except BaseException:
            self._reserved.pop(key, None)
            await self._notify()  # Another session may be waiting for the place.
            raise
        del self._reserved[key]
        # Its log lines must not name the turn that happened to start it.
        running = self._run(key, member)
        try:
            self._tasks.create_task(running, name=f"acp:{key}", context=Context())
        except RuntimeError as closing:  # The daemon is going down, so no task can be started.
            running.close()
            del self._members[key]
            raise Refused("The gateway is shutting down.") from closing
        return member

    async def _run(self, key: str, member: _Member) -> None:
        try:
            with self._sessions.feed.followed(key, member):
                await member.program.run()
        finally:
            del self._members[key]
            await self._notify()

    def _has_room(self, agent: str, limit: int) -> bool:
        return self.running[agent] + list(self._reserved.values()).count(agent) < limit

    async def _make_room(self, key: str, agent: str, limit: int, show: Callable[[str], None]) -> None:
        """Wait until fewer than `limit` programs of the agent run. The one that was not used for longest is ended."""
        async with self._changed:
            while not self._has_room(agent, limit):
                programs = [each for each in self._members.values() if each.program.launch.agent == agent]
                idle = [member for member in programs if not member.is_used]
                if idle:
                    # Last comes one whose turn was stopped and that has not obeyed yet. It is ended, not waited for: no
                    # event tells when it obeys.
                    oldest = min(idle, key=lambda member: (member.program.is_busy, member.used_at))
                    log.info("agent_evicted", agent=agent, session=oldest.program.launch.session, limit=limit)
                    oldest.program.end()
                else:
                    at_work = "Another session" if limit == 1 else f"{limit} other sessions"
                    show(f"{at_work} of {agent} must finish first. I start this one as soon as there is room.")
                await self._changed.wait()
            self._reserved[key] = agent

    def _settings(self, agent: str, model: str | None) -> AgentSettings:
        """Return the settings of an agent, with the model that was chosen for a session."""
        settings = self._live.settings.agents.get(agent)
        if settings is None:  # A reload has removed it just now.
            raise Refused(f"The agent {agent} no longer exists. /agent lists the agents.")
        return settings.model_copy(update={"model": model})

    async def _prepare(self, session: SessionMeta, agent: str, settings: AgentSettings) -> AgentLaunch:
        """Check everything that the program needs. Raises `Refused` with a sentence that says what is missing."""
        workspace = await self._worktrees.open_workspace(session, settings)
        try:
            program = await asyncio.to_thread(self._find_program, settings)
        except ProgramMissing as missing:
            raise Refused(str(missing)) from missing
        try:
            own_home = await asyncio.to_thread(self._homes.prepare, session.key)
        except OSError as error:
            log.warning("agent_home_not_made", session=session.key, reason=str(error))
            raise Refused(f"{agent} can't be started: its folder can't be made ({error.strerror}).") from error
        record = await asyncio.to_thread(self._homes.read, session.key)
        known_id = None
        if record is not None and record.agent == agent and not await self._has_diverged(session.key, record.since):
            known_id = record.acp_session
        if self._is_stopping:
            raise Refused("The gateway is shutting down.")
        return AgentLaunch(
            agent=agent,
            session=session.key,
            settings=settings,
            preset=effective(settings),
            program=program,
            workspace=workspace,
            home=settings.sandbox.home or own_home,
            attachments=self._store.folder(session.key),
            data_dir=self._live.settings.gateway.data_dir,
            known_id=known_id,
            service=self._live.settings.tools.shell.sandbox_socket,
        )

    def _find_program(self, settings: AgentSettings) -> AgentProgram:
        gateway = self._live.settings.gateway
        private = (gateway.data_dir, gateway.workspace_root)
        return find_program(settings, os.environ.get("PATH", os.defpath), private=private)

    async def _has_diverged(self, key: str, since: int) -> bool:
        """Return whether the transcript has changed otherwise than by turns of the program."""
        async with aclosing(self._sessions.entries_since(key, since)) as written:
            async for entry in written:
                if isinstance(entry, entries.Undo | entries.Clear | entries.Agent):
                    return True
        return False

    async def end(self, session: str) -> None:
        """End the program of a session, if it has one, and wait until it is gone."""
        if (member := self._members.get(session)) is not None:
            member.program.end()
            await member.program.ended.wait()
            async with self._changed:
                await self._changed.wait_for(lambda: self._members.get(session) is not member)

    def end_removed(self) -> None:
        """End the programs of agents that the settings no longer have, unless a turn uses them."""
        for member in self._members.values():
            if member.program.launch.agent not in self._live.settings.agents and not member.is_used:
                member.program.end()

    async def stop(self) -> None:
        """End all programs, and start no more."""
        self._is_stopping = True
        ended = [member.program.ended for member in self._members.values()]
        for member in self._members.values():
            member.program.end()
        with suppress(TimeoutError):  # The kernel kills what is left, when the daemon ends.
            async with asyncio.timeout(STOP_TIMEOUT):
                for event in ended:
                    await event.wait()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
