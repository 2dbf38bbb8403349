"""The inbox: commits an accepted message, puts it into its lane, and runs the jobs that come out of the lanes."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from random import Random
from time import time_ns
from typing import NamedTuple
from uuid import uuid4

from config import BusyMode, WaitingSign
from gateway.access.roles import role_in
from gateway.access.rules import AccessLost, Live
from gateway.commands.command import CommandKind
from gateway.commands.parser import ParsedCommand
from gateway.commands.registry import RETRY
from gateway.commands.runner import CommandRunner
from gateway.contract import Inbound
from gateway.errors import Refused, SessionDamaged
from gateway.files.download import AttachmentDownloads
from gateway.job import ApartSession, Job
from gateway.lanes import LaneFull, Lanes
from gateway.outbound.delivery import Delivery
from gateway.outbound.reactions import WaitingReactions
from gateway.repos.repositories import Repositories, opening_entries
from gateway.routing import Routed
from gateway.sessions import SessionManager, SessionMeta, SessionStatus
from gateway.sessions.keys import session_key
from gateway.sessions.session import NewSession
from gateway.spool import AddToInbox, AddToOutbox, MarkSeen, Operation, Spool
from gateway.tracing import Tracer
from gateway.turns.runner import TurnRunner
from gateway.turns.state import user_entry

WAITS = "One moment, I'm still working on your previous message."
OTHERS_FIRST = "One moment, I'm answering others first."
INTERRUPTED = "Interrupted by your next message."


class QueueFull(Refused):
    """`waiting` messages wait already, in this session or in all of them."""

    def __init__(self, waiting: int) -> None:
        super().__init__(
            f"{waiting} messages are already waiting for an answer. "
            "Wait for some of them, or send /stop to drop those of this chat."
        )
        self.waiting = waiting


class _Workplace(NamedTuple):
    """Who answers in a new session, and in which repository; empty for none. With a title, the session is apart."""

    agent: str
    repo: str
    title: str = ""


class Inbox:
    """`lanes` has the jobs of each session; `readings` has the commands that read transcripts, by scope."""

    def __init__(
        self,
        *,
        live: Live,
        spool: Spool,
        sessions: SessionManager,
        lanes: Lanes[Job],
        readings: Lanes[Job],
        delivery: Delivery,
        reactions: WaitingReactions,
        downloads: AttachmentDownloads,
        repos: Repositories,
        now: Callable[[], datetime],
        tracer: Tracer | None = None,
    ) -> None:
        self._live = live
        self._spool = spool
        self._sessions = sessions
        self._lanes = lanes
        self._readings = readings
        self._delivery = delivery
        self._reactions = reactions
        self._downloads = downloads
        self._repos = repos
        self._now = now
        self._tracer = tracer
        self._random = Random()  # noqa: S311 - makes unique ids, not secrets

    async def accept(
        self,
        inbound: Inbound,
        routed: Routed,
        parsed: ParsedCommand | None = None,
        *,
        into: str | None = None,
        apart: ApartSession | None = None,
        also: Sequence[Operation] = (),
        record: Callable[[str], Sequence[Operation]] = lambda _: (),
        received: int,
    ) -> Job:
        """Commit a message, or a command that is not run at intake, and put it into its lane; or do neither.

        The message goes into the active session of its scope, into the session with the key `into`, or into the one
        that is `apart`. `also` is committed with it, and what `record` returns for the key of the session. Raises
        `QueueFull` if too many messages are waiting. The caller holds the lock of the scope. `received` is for its
        trace: the `time_ns` before the checks.
        """
        scope = routed.scope
        is_reading = parsed is not None and parsed.command.kind is CommandKind.READING

        def find_session() -> SessionMeta | None:
            if into is not None:
                return self._sessions.require_open(into)
            if apart is not None:
                own = self._sessions.find(apart.key) if apart.key else None
                return own if own is not None and own.status is SessionStatus.ACTIVE else None
            # A reading command is about the active session, even a closed one. Anything else starts a new session then.
            return self._sessions.active(scope) if is_reading else self._sessions.open_session(scope)

        session = find_session()
        if parsed is None and session is not None and not self._sessions.is_loaded(session.key):
            try:
                # The turn would read the session next. So a message is never accepted into one that cannot be read.
                await self._sessions.load_meta(session.key)
            except Refused as refusal:
                if not isinstance(refusal, SessionDamaged) and self._sessions.find(session.key) is not None:
                    raise
            session = find_session()  # It may have been closed or deleted while it was read.
        new = None
        if session is None:
            new = self._choose_workplace(inbound, routed, is_command=parsed is not None, apart=apart)
        number = self._sessions.next_number(scope) if session is None else session.number
        key = session_key(scope, number) if session is None else session.key
        lanes, lane = (self._readings, scope) if is_reading else (self._lanes, key)
        # If nothing is before it, a message starts its turn in the commit that accepts it. That saves a commit.
        is_plain = parsed is None and session is not None and not inbound.attachments
        is_started = is_plain and self._has_slot() and lanes.reserve(lane)
        # This call may be cancelled at any time:
        # 1. The spool calls `enqueue` as soon as the commit has succeeded, before it wakes anyone who waits for it.
        # 2. It does so even if this call was cancelled: a commit that is under way cannot be taken back.
        # 3. A cancelled call leaves only after the spool has settled its commit. So the scope is still locked when the
        #    job goes into the lane, and the next message of the chat comes behind it.
        try:
            job = Job(
                # The id begins with the time, because neighbours in the spool's indexes are cheap. Random numbers of
                # the operating system would cost more than the rest of this function.
                # Tracing takes it for the id of a trace.
                turn=f"{(committing := time_ns()) >> 10:014x}{self._random.getrandbits(72):018x}",
                inbound=inbound,
                agent=routed.agent,
                scope=scope,
                session=key,
                number=number,
                command=parsed.command.name if parsed else None,
                argument=parsed.argument if parsed else "",
                has_begun=is_started,
            )
            await self._commit_and_enqueue(job, lanes, lane, [*also, *record(key)], new)
        except asyncio.CancelledError:
            await self._spool.drain()
            raise
        finally:
            if is_started:
                lanes.release(lane)
        if self._tracer is not None:
            self._tracer.message_accepted(job, received=received, committing=committing)
        return job

    async def _commit_and_enqueue(
        self, job: Job, lanes: Lanes[Job], lane: str, also: Sequence[Operation], new: "_Workplace | None"
    ) -> None:
        inbound, rules = job.inbound, self._live.rules(job.inbound.address)
        is_reading = lanes is self._readings
        note: list[AddToOutbox] = []
        why_waiting = None
        if not job.has_begun:
            try:
                lanes.check_room(lane)
            except LaneFull as full:
                raise QueueFull(full.waiting) from full
            # No person waits for the answer to a schedule, and it interrupts no answer to a person.
            if inbound.scheduled is not None:
                pass
            elif not is_reading and lanes.is_busy(lane):
                why_waiting = None if rules.busy is BusyMode.INTERRUPT else WAITS
            elif not is_reading and not self._has_slot():
                why_waiting = OTHERS_FIRST
            # A program does not read notes.
            if why_waiting and rules.waiting_sign is WaitingSign.NOTE and not inbound.sender.is_verified:
                note = self._delivery.compose(inbound.reply(why_waiting), key=f"notice-{uuid4().hex}", scope=job.scope)

        def enqueue(failure: BaseException | None = None) -> None:
            if failure is not None:
                return
            if job.has_begun:
                lanes.put_reserved(lane, job)
                return
            if not is_reading:
                if why_waiting and rules.waiting_sign is WaitingSign.REACTION:
                    self._reactions.add(job.turn, inbound)
                if rules.busy is BusyMode.INTERRUPT and inbound.scheduled is None:
                    lanes.stop(lane, INTERRUPTED)
                if inbound.attachments:
                    self._downloads.start(job)
            lanes.put(lane, job)
            self._delivery.post(note)

        now = self._now()
        accepted = AddToInbox(
            turn=job.turn,
            inbound=inbound,
            scope=job.scope,
            session=job.session,
            number=job.number,
            agent=job.agent,
            at=now,
            is_started=job.has_begun,
        )
        operations: list[Operation] = [MarkSeen.of(inbound, now), *also, accepted, *note]
        if job.has_begun:
            entry = user_entry(inbound, turn=job.turn)
            await self._sessions.append(job.session, [entry], also=operations, then=enqueue)
        elif new is not None:
            await self._sessions.start_new(
                job.scope,
                agent=new.agent,
                origin=inbound.address,
                title=new.title,
                new=NewSession(repo=new.repo, is_apart=bool(new.title)),
                opening=opening_entries(new.repo),
                notice="" if new.title else new_session_notice(self._sessions, job.scope),
                is_busy=self._lanes.is_busy,
                also=operations,
                then=enqueue,
            )
        else:
            await self._spool.commit(*operations, scope=job.scope, on_done=enqueue)

    def _choose_workplace(
        self, inbound: Inbound, routed: Routed, *, is_command: bool, apart: ApartSession | None
    ) -> "_Workplace":
        """Return the agent and the repository of the session that a message starts.

        Raises `Refused` if a coding agent answers, and the person has to choose a repository first.
        """
        role, last = role_in(self._live, inbound), self._sessions.active(routed.scope)
        if apart is not None:
            return _Workplace(*self._repos.workplace(routed.agent, None, role=role, agent=apart.agent), apart.title)
        try:
            return _Workplace(*self._repos.workplace(routed.agent, last, role=role))
        except Refused:
            if not is_command:
                raise
            # A command such as /agent needs none.
            return _Workplace(self._repos.next_agent(routed.agent, last, role=role), "")

    def _has_slot(self) -> bool:
        """Return whether a turn that starts now need not wait for other turns."""
        return self._lanes.busy_count < self._live.settings.gateway.max_parallel_turns


def new_session_notice(sessions: SessionManager, scope: str) -> str:
    """Return a sentence that says why the next message of a scope starts a new session; empty for the first one."""
    active, number = sessions.active(scope), sessions.next_number(scope)
    before = sessions.lost.get(scope) if active is None else active.number
    if before is None:
        return ""
    if active is not None and active.status is SessionStatus.ERROR and active.status_why:
        return f"Session {before} has ended with an error, so this is session {number}."
    if active is None or active.status is SessionStatus.ERROR:
        return f"Session {before} can't be read any more, so this is session {number}."
    return f"Session {before} is closed, so this is session {number}. /session resume {before} opens it again."


class Dispatcher:
    """Runs a job from a lane: as a turn of the agent, or as a command that waited for the turns before it."""

    def __init__(
        self,
        turns: TurnRunner,
        commands: CommandRunner,
        reactions: WaitingReactions,
        tracer: Tracer | None = None,
    ) -> None:
        self._turns = turns
        self._commands = commands
        self._reactions = reactions
        self._tracer = tracer

    async def run(self, job: Job) -> Job | None:
        """Run `job`. Returns the next job of the lane if its turn has started in the commit that ended this one."""
        if self._tracer is None:
            return await self._run(job)
        with self._tracer.running(job):
            return await self._run(job)

    async def _run(self, job: Job) -> Job | None:
        if job.command is None:
            return await self._turns.run(job)
        self._reactions.remove(job.turn)
        if job.command == RETRY.name:
            try:
                entries = [] if job.is_resumed else await self._turns.retry_opening(job)
            except (Refused, AccessLost) as refusal:
                await self._commands.refuse(job, str(refusal))
                return None
            except asyncio.CancelledError as stop:
                await self._commands.stopped(job, str(stop))
                raise
            # After a restart the transcript already has the entries of the retry.
            if entries or job.is_resumed:
                return await self._turns.run(job, entries)
        await self._commands.run_queued(job)
        return None
