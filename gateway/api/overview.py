"""The routes of the API about the gateway as a whole: repositories, agents, usage and health."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta

from config import OWNER_ROLE
from config.types import API_CHANNEL
from gateway import __version__
from gateway.access.role_table import AskerRoles
from gateway.access.roles import current_role
from gateway.access.rules import Live
from gateway.api import types as t
from gateway.api.operation import ApiCall
from gateway.api.programs import role_of_caller
from gateway.contract import TokenScope
from gateway.http.routes import Health
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.repos.repositories import Repositories
from gateway.sessions import SessionManager, SessionStatus
from gateway.spool import Spool, UsageTotal
from gateway.turns.agents import AgentRegistry

MAX_PEOPLE = 100
MAX_USAGE_ROWS = 20_000
USAGE_SPAN = timedelta(days=29)
"""Between the first and the last day of a history, unless the request says otherwise."""


class Overview:
    def __init__(
        self,
        *,
        live: Live,
        sessions: SessionManager,
        agents: AgentRegistry,
        repos: Repositories,
        spool: Spool,
        lanes: Lanes[Job],
        health: Callable[[], Health],
        now: Callable[[], datetime],
    ) -> None:
        self._live = live
        self._sessions = sessions
        self._agents = agents
        self._repos = repos
        self._spool = spool
        self._lanes = lanes
        self._health = health
        self._now = now

    async def repos(self, call: ApiCall) -> t.RepoList:
        token = self._live.token_book.find(call.caller.token)
        role = role_of_caller(self._live, call.caller)
        ids = [
            repo.id
            for repo in self._live.settings.repos
            if (token is None or token.repo in (None, repo.id)) and role.may_use_repo(repo.id, is_usual=True)
        ]
        is_git = self._repos.has_coding_agents
        if token is not None and token.agent is not None:
            is_git = self._repos.is_coding_agent(token.agent)
        return t.RepoList(repos=[await repo_info(self._repos, repo_id, is_git=is_git) for repo_id in ids])

    async def agents(self, call: ApiCall) -> t.AgentList:
        token = self._live.token_book.find(call.caller.token)
        role = role_of_caller(self._live, call.caller)
        asker = AskerRoles([role])
        return t.AgentList(
            agents=[
                t.AgentInfo(
                    id=agent.name,
                    model=agent.model,
                    backend=self._live.settings.agents[agent.name].backend,
                    models=list(agent.models_for(role).values()),
                    tools=sorted(spec.name for spec in agent.toolbox.under(lambda: asker).specs()),
                )
                for agent in self._agents
                if (token is None or token.agent in (None, agent.name)) and role.is_answered_by(agent.name)
            ]
        )

    async def roles(self, call: ApiCall) -> t.RoleList:
        """Return all roles of the settings, and those that people or tokens still have although they are gone."""
        del call
        table, settings = self._live.roles, self._live.settings
        tokens = self._live.token_book.tokens.values()
        guests = [
            each
            for each in self._live.guest_book.guests.values()
            if (of_settings := f"{each.person.channel}:{each.person.sender}") not in table.people
            and of_settings not in settings.gateway.owners  # The settings win, and those people are listed by them.
        ]
        given = {current_role(self._live, each) for each in guests} | {each.shown_role for each in tokens}
        return t.RoleList(
            roles=[
                t.RoleInfo(
                    name=name,
                    is_configured=name in table.roles,
                    commands=_list(role.commands),
                    agents=_list(role.agents),
                    models=_list(role.models),
                    tools=_list(role.tools),
                    ask=list(role.ask),
                    workspaces=_list(role.workspaces),
                    approve=role.approve,
                    moderate=role.moderate,
                    tokens_per_day=role.tokens_per_day,
                    tokens_per_turn=role.tokens_per_turn,
                    cost_per_day=role.cost_per_day,
                    people=[
                        *(settings.gateway.owners if name == OWNER_ROLE else ()),
                        *(person for person, given_role in table.people.items() if given_role == name),
                        *(str(guest.person) for guest in guests if current_role(self._live, guest) == name),
                    ],
                    chats=[chat for chat, given_role in table.chats.items() if given_role == name],
                    tokens=[token.id for token in tokens if token.shown_role == name],
                )
                for name in (*table.roles, *sorted(given - table.roles.keys()))
                for role in (table[name].settings,)
            ]
        )

    async def usage(self, call: ApiCall) -> t.UsageReport:
        """Return the usage of a day: for `admin` of everyone, otherwise of the calling program."""
        day = (call.query_as(t.UsageQuery).day or self._now().astimezone(UTC).date()).isoformat()
        if call.caller.may(TokenScope.ADMIN):
            people = await self._spool.top_usage(day, limit=MAX_PEOPLE)
            total = await self._spool.usage(day)
        else:
            person = f"token:{call.caller.token}"
            total = await self._spool.usage(day, person)
            people = [(person, total)]
        return t.UsageReport(
            day=day,
            total=token_count(total),
            people=[
                t.UsageOfPerson(
                    person=name,
                    input_tokens=used.input_tokens,
                    cached_tokens=used.cached_tokens,
                    output_tokens=used.output_tokens,
                    cost_micros=used.cost_micros,
                )
                for name, used in people
            ],
        )

    async def usage_history(self, call: ApiCall) -> t.UsageHistory:
        """Return the usage of the last days: for `admin` of everyone, otherwise of the calling program."""
        query = call.query_as(t.UsageHistoryQuery)
        until = query.until or self._now().astimezone(UTC).date()
        since = query.since or until - min(USAGE_SPAN, until - date.min)
        person = None if call.caller.may(TokenScope.ADMIN) else f"token:{call.caller.token}"
        first, last = since.isoformat(), until.isoformat()
        found = await self._spool.usage_between(first, last, person, limit=MAX_USAGE_ROWS + 1)
        return t.UsageHistory(
            since=first,
            until=last,
            rows=[
                t.UsageOfDay(
                    day=each.day,
                    person=each.person,
                    model=each.model,
                    agent=each.agent,
                    input_tokens=each.total.input_tokens,
                    cached_tokens=each.total.cached_tokens,
                    output_tokens=each.total.output_tokens,
                    cost_micros=each.total.cost_micros,
                )
                for each in found[:MAX_USAGE_ROWS]
            ],
            is_complete=len(found) <= MAX_USAGE_ROWS,
        )

    async def status(self, call: ApiCall) -> t.HealthReport:
        health = self._health()
        return t.HealthReport(
            version=__version__,
            ready=health.ready,
            # The reasons name folders and platforms, which are the operator's business.
            troubles=list(health.troubles) if call.caller.may(TokenScope.ADMIN) else [],
            active_sessions=await self._sessions.directory.total(API_CHANNEL, SessionStatus.ACTIVE),
            max_active_sessions=self._live.settings.api.max_active_sessions,
            running_turns=self._lanes.running,
            waiting_messages=self._lanes.waiting,
        )


async def repo_info(repos: Repositories, repo_id: str, *, is_git: bool) -> t.RepoInfo:
    """Return what programs may know about a repository. It may have been removed from the settings.

    `is_git`: a coding agent uses it, so it has to be a git work tree.
    """
    repo = repos.find(repo_id)
    if repo is None:
        return t.RepoInfo(id=repo_id, name=repo_id, trouble="it is no longer configured")
    if (trouble := repos.describe_elsewhere(repo)) is None:
        trouble = await asyncio.to_thread(repos.find_trouble, repo, is_git=is_git)
    return t.RepoInfo(id=repo_id, name=repo.name, trouble=trouble)


def token_count(total: UsageTotal) -> t.TokenCount:
    return t.TokenCount(
        input_tokens=total.input_tokens,
        cached_tokens=total.cached_tokens,
        output_tokens=total.output_tokens,
        cost_micros=total.cost_micros,
    )


def _list(patterns: Sequence[str] | None) -> list[str] | None:
    return None if patterns is None else list(patterns)
