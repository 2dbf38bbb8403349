"""Sessions that programs start: how many may be active, how they end, and which of them a token may see."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from datetime import datetime, timedelta
from http import HTTPStatus
from uuid import uuid4

import structlog
from msgspec.structs import replace

from config.types import API_CHANNEL, PROGRAM_CHANNELS
from gateway.access.rules import Live
from gateway.aio import finish_before_cancel
from gateway.api.operation import invalid
from gateway.api.programs import role_of_caller
from gateway.commands.turns import DroppedJobs
from gateway.contract import Address, Caller, Outbound, PeerKind, TokenScope
from gateway.errors import GatehouseError, HeldElsewhere, Refused, Transient
from gateway.http.responses import HttpError
from gateway.inbound.intake import Intake
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.outbound.delivery import Delivery
from gateway.placement import Placement
from gateway.repos.repositories import Repositories
from gateway.routing import DEFAULT_AGENT, program_scope
from gateway.sessions import Entry, SessionManager, SessionMeta, SessionStatus, entries
from gateway.sessions.directory import SessionFilter
from gateway.sessions.session import GATEWAY, IDLE_TIMEOUT, NewSession
from gateway.spool import Spool, SpoolUnavailable

log = structlog.get_logger()

IDLE_CHECK_INTERVAL = 10.0
RETRY_WHEN_FULL = 60
"""Seconds after which a program may try again to start a session, when too many are active."""
REQUESTED = "requested"
SCOPES_TRIED = 1_000
"""Scopes of a new session that are tried for one whose shard needs no labels that this node lacks."""
NOTHING = "/"
"""No name contains a slash, so a filter with this name finds nothing."""


class ProgramSessions:
    """Starts, ends and finds sessions for programs."""

    def __init__(
        self,
        *,
        live: Live,
        sessions: SessionManager,
        lanes: Lanes[Job],
        spool: Spool,
        delivery: Delivery,
        intake: Intake,
        repos: Repositories,
        placement: Placement,
        now: Callable[[], datetime],
    ) -> None:
        self._live = live
        self._sessions = sessions
        self._lanes = lanes
        self._spool = spool
        self._delivery = delivery
        self._intake = intake
        self._repos = repos
        self._placement = placement
        self._now = now
        # The number of active sessions is checked and changed by one program at a time. In a cluster, each node may
        # start one session too many in the milliseconds between another node's check and its commit.
        self._starting = asyncio.Lock()

    def may_see(self, caller: Caller, session: SessionMeta) -> bool:
        """Return whether the caller may know of a session.

        Owners and `admin` see all sessions. Other tokens see those of programs, of their agent and repository, and
        without `read` or `manage` only those that they have started themselves.
        """
        if caller.may(TokenScope.ADMIN):
            return True
        token = self._live.token_book.find(caller.token)
        if token is None or session.channel not in PROGRAM_CHANNELS:
            return False
        if token.agent not in (None, session.agent) or token.repo not in (None, session.repo):
            return False
        sees_others = caller.may(TokenScope.READ) or caller.may(TokenScope.MANAGE)
        return sees_others or session.created_by == caller.token

    def visible(self, caller: Caller, wanted: SessionFilter) -> SessionFilter:
        """Restrict a filter to the sessions that the caller may see."""
        if caller.may(TokenScope.ADMIN):
            return wanted
        token = self._live.token_book.find(caller.token)
        sees_others = caller.may(TokenScope.READ) or caller.may(TokenScope.MANAGE)
        return replace(
            wanted,
            only_programs=True,
            agents=_narrowed(wanted.agents, token.agent if token else NOTHING),
            repos=_narrowed(wanted.repos, token.repo if token else NOTHING),
            created_by=None if sees_others else caller.token,
        )

    async def find(self, caller: Caller, session_id: str) -> SessionMeta:
        """Return a session that the caller may see. Raises a 404 otherwise, also if it exists."""
        found = await self._sessions.directory.find(session_id)
        if found is None or not self.may_see(caller, found):
            raise HttpError(HTTPStatus.NOT_FOUND, "There is no session with this id. GET /api/sessions lists them.")
        return found

    async def find_own(self, caller: Caller, session_id: str) -> SessionMeta:
        """Return a session that the caller may end: one of its own, or with `manage` any that it sees."""
        found = await self.find(caller, session_id)
        is_own = found.created_by == caller.token and caller.may(TokenScope.PROMPT)
        if not is_own and not caller.may(TokenScope.MANAGE):
            raise HttpError(
                HTTPStatus.FORBIDDEN, "Another token has started this session. To change it, a token needs `manage`."
            )
        return found

    async def start(
        self, caller: Caller, *, agent: str | None = None, repo: str | None = None, title: str | None = None
    ) -> SessionMeta:
        """Start a session with a scope of its own. Raises `HttpError` if it may not be started."""
        agent, repo = self._allowed(caller, agent, repo)
        self._placement.require_anywhere(self._placement.needed(agent, repo))
        opening: list[Entry] = []
        if repo is not None:
            await self.check_repo(repo, agent, caller)
            opening = [entries.Workspace(value=repo)]
        async with self.room() as active:
            session_id, scope = self._new_scope(agent, self._placement.needed(agent, repo))
            await self.require_labels(scope, agent, repo)
            session = await self._sessions.start_new(
                scope,
                agent=agent,
                origin=Address(channel=API_CHANNEL, kind=PeerKind.DIRECT, peer=session_id),
                title=title,
                new=NewSession(id=session_id, repo=repo or "", created_by=caller.token),
                opening=opening,
            )
        log.info("api_session_started", session=session.key, by=caller.name, repo=repo, active=active + 1)
        return session

    def _new_scope(self, agent: str, needed: frozenset[str]) -> tuple[str, str]:
        """Return a new id, and the scope of the session with that id.

        A node of a cluster owns that scope, and keeps it if it can.
        """
        shards = self._spool.shards
        tries = 0
        while True:
            session_id = str(uuid4())
            scope = program_scope(agent, API_CHANNEL, session_id).scope
            if shards is None:
                return session_id, scope
            tries += 1
            if shards.serves(scope) and (tries > SCOPES_TRIED or self._placement.keeps(scope, needed)):
                return session_id, scope
            if not shards.epochs.keys() - shards.loading - shards.leaving:
                raise HeldElsewhere(scope)

    @asynccontextmanager
    async def room(self) -> AsyncIterator[int]:
        """Yield how many sessions are active, while one more may become active. Raises a 429 if none may."""
        async with self._starting:
            limit = self._live.settings.api.max_active_sessions
            active = await self._sessions.directory.total(API_CHANNEL, SessionStatus.ACTIVE)
            if active >= limit:
                log.warning("api_session_limit_reached", active=active, limit=limit)
                raise HttpError(
                    HTTPStatus.TOO_MANY_REQUESTS,
                    f"{active} sessions are active, and {limit} is the limit (api.max_active_sessions). "
                    "Complete or cancel one of them, or wait until one has been idle for long enough.",
                    headers={"Retry-After": str(RETRY_WHEN_FULL)},
                )
            yield active

    def _allowed(self, caller: Caller, agent: str | None, repo: str | None) -> tuple[str, str | None]:
        """Return agent and repository for a new session, by the request and the token. Raises `HttpError`."""
        token = self._live.token_book.find(caller.token)
        bound_agent, bound_repo = (token.agent, token.repo) if token is not None else (None, None)
        for name, wanted, bound in (("agent", agent, bound_agent), ("repoId", repo, bound_repo)):
            if bound is not None and wanted not in (None, bound):
                raise HttpError(HTTPStatus.FORBIDDEN, f"This token may only use the {name} `{bound}`.")
        agent, repo = agent or bound_agent or DEFAULT_AGENT, repo or bound_repo
        if agent not in self._live.settings.agents:
            raise invalid(f"There is no agent `{agent}`. GET /api/agents lists them.")
        role = role_of_caller(self._live, caller)
        if not role.is_answered_by(agent):
            raise HttpError(HTTPStatus.FORBIDDEN, f"The role {role.name} may not use the agent `{agent}`.")
        if repo is None and self._repos.is_coding_agent(agent):
            repo = self._repos.default(agent)
            if repo is None:
                raise invalid(
                    f"The agent `{agent}` works in a repository, and has no default. Name one as `repoId`. "
                    "GET /api/repos lists repositories."
                )
        if repo is not None and not role.may_use_repo(repo, is_usual=True):
            raise HttpError(HTTPStatus.FORBIDDEN, f"The role {role.name} may not use the repository `{repo}`.")
        return agent, repo

    async def check_repo(self, repo_id: str, agent: str, caller: Caller) -> None:
        """Refuse a repository that does not exist, or that the agent cannot use now. Raises `HttpError`."""
        try:
            await self._repos.check(repo_id, by=caller.name, is_git=self._repos.is_coding_agent(agent))
        except Refused as refusal:
            raise invalid(f"{refusal} GET /api/repos lists repositories.") from refusal

    async def require_labels(self, scope: str, agent: str, repo: str | None) -> None:
        """Let only nodes own a scope from now on that have the labels of a new session. Raises as `require_now`."""
        await self._placement.require_now(scope, self._placement.needed(agent, repo))

    @asynccontextmanager
    async def changing(self, session: SessionMeta) -> AsyncIterator[SessionMeta]:
        """Yield a session as it is now, and let no prompt into it while inside. Raises `Refused` if it is gone."""
        async with self._intake.locked(session.scope):
            current = self._sessions.find(session.key)
            if current is None:
                raise Refused("This session was deleted or archived just now.")
            yield current

    async def complete(self, session: SessionMeta, *, by: str) -> SessionMeta:
        """End a session by request. Prompts that were accepted before are still answered."""
        async with self.changing(session) as current:
            if current.status is SessionStatus.COMPLETED:
                return current
            if current.status is not SessionStatus.ACTIVE:
                raise Refused(f"This session is {current.status.value}, so it can't be completed.")
            return await self._complete(current, by=by, reason=REQUESTED)

    async def _complete(self, session: SessionMeta, *, by: str, reason: str) -> SessionMeta:
        ended = await self._sessions.set_status(session.key, SessionStatus.COMPLETED, by=by, why=reason)
        await self._log_end(ended)
        return ended

    async def cancel(self, session: SessionMeta, *, by: str) -> SessionMeta:
        """Stop the run of a session and drop the prompts that wait. A system message says why."""
        async with self.changing(session) as current:
            # A completed session may still answer the prompts that it has accepted.
            is_running = current.status is SessionStatus.COMPLETED and self._lanes.is_busy(current.key)
            if current.status is not SessionStatus.ACTIVE and not is_running:
                return current
            # Otherwise a timeout of the request could come between the commit and its consequences.
            return await finish_before_cancel(self._cancel(current, by=by))

    async def _cancel(self, session: SessionMeta, *, by: str) -> SessionMeta:
        reason = f"The session was cancelled by {by}."
        ending: list[Entry] = [
            entries.System(content=reason),
            entries.Status(value=SessionStatus.CANCELLED, by=by, why=REQUESTED),
        ]
        await self._stop(session, reason, unanswered="its session was cancelled", ending=ending)
        ended = self._sessions.find(session.key) or session
        await self._log_end(ended)
        return ended

    async def stop(self, session: SessionMeta, *, by: str) -> SessionMeta:
        """Stop the run of a session and drop the prompts that wait. The session stays open for more."""
        async with self.changing(session) as current:
            if self._lanes.is_busy(current.key):
                stopped = self._stop(current, f"Stopped by {by}.", unanswered=f"{by} has stopped the session")
                await finish_before_cancel(stopped)
            return self._sessions.find(current.key) or current

    async def _stop(self, session: SessionMeta, reason: str, *, unanswered: str, ending: Sequence[Entry] = ()) -> None:
        """Stop the turn with a reason, which people read, and commit the end of the prompts that wait."""
        # Empty the lane first. Otherwise the end of the stopped turn would start the next prompt.
        dropped = DroppedJobs(self._spool, [(self._lanes, session.key)], scope=session.scope)
        answer = dropped.answer("", None, reason=unanswered)
        notices = [
            part
            for message in answer.other_chats
            for part in self._delivery.compose(message, key=f"notice-{uuid4().hex}", scope=session.scope)
        ]
        try:
            await self._sessions.append(session.key, ending, also=[*answer.operations, *notices])
        except GatehouseError:
            dropped.put_back()
            raise
        self._lanes.stop(session.key, reason)
        self._delivery.post(notices)

    async def resume(self, session: SessionMeta) -> SessionMeta:
        """Open a completed or cancelled session again, and make it the active one of its scope."""
        async with self.changing(session) as current:
            if current.status is SessionStatus.ERROR:
                raise Refused("This session is in error, so it can only be read.")
            await self.require_labels(current.scope, current.agent, current.repo)
            if current.repo:
                is_git = self._repos.is_coding_agent(current.agent)
                await self._repos.check(current.repo, by="the resume of a session", is_git=is_git)
            needs_room = current.channel == API_CHANNEL and current.status is not SessionStatus.ACTIVE
            async with self.room() if needs_room else nullcontext():
                return await self._sessions.resume(current.scope, current.number)

    async def record_notice(self, notice: Outbound) -> None:
        """Write to the transcript why a prompt was not answered, unless that is there already."""
        found = await self._sessions.directory.find(notice.address.peer)
        if found is None:
            return
        try:
            known = (await self._sessions.load(found.key)).entries
            if not any(isinstance(entry, entries.System) and entry.about == notice.reply_to for entry in known):
                reason = entries.System(content=notice.text, is_failure=True, about=notice.reply_to or "")
                await self._sessions.append(found.key, [reason])
        except Refused:  # The session was deleted, or cannot be read.
            log.info("notice_not_recorded", session=found.key)
        except (SpoolUnavailable, HeldElsewhere) as error:
            raise Transient(str(error)) from error

    async def run(self) -> None:
        """Complete idle sessions until cancelled."""
        # The directory takes memory for every session. It is not built before a program has started one.
        has_sessions = self._has_sessions()
        while True:
            if has_sessions or self._sessions.directory.is_built:
                await self.complete_idle()
            await asyncio.sleep(IDLE_CHECK_INTERVAL)
            if self._spool.shards is not None:  # This node may have taken over some.
                has_sessions = self._has_sessions()

    def _has_sessions(self) -> bool:
        return any(f":{API_CHANNEL}:" in scope for scope in self._sessions.scopes())

    async def complete_idle(self) -> None:
        minutes = self._live.settings.api.idle_minutes
        if minutes == 0:
            return
        limit = self._now() - timedelta(minutes=minutes)

        def is_idle(session: SessionMeta) -> bool:
            is_open = session.status is SessionStatus.ACTIVE
            return is_open and session.last_accessed < limit and not self._lanes.is_busy(session.key)

        for session in filter(is_idle, await self._sessions.directory.active(API_CHANNEL)):
            # It was deleted just now, or another node of the cluster owns it, or the next round tries again.
            with suppress(Refused, SpoolUnavailable, HeldElsewhere):
                async with self.changing(session) as current:
                    if is_idle(current):
                        await self._complete(current, by=GATEWAY, reason=IDLE_TIMEOUT)

    async def _log_end(self, session: SessionMeta) -> None:
        if session.channel == API_CHANNEL:
            active = await self._sessions.directory.count(API_CHANNEL, SessionStatus.ACTIVE)
            log.info(
                "api_session_ended",
                session=session.key,
                status=session.status,
                reason=session.status_why,
                active=active,
            )


def _narrowed(wanted: frozenset[str], allowed: str | None) -> frozenset[str]:
    """Return the part of `wanted` that is allowed; None allows all. Never empty then: an empty set means all."""
    if allowed is None:
        return wanted
    return frozenset({allowed}) if not wanted or allowed in wanted else frozenset({NOTHING})
