"""The configured repositories: which of them a person may use with an agent, and whether one can be used now."""

import asyncio

import structlog

from config import Backend, Repo
from config.errors import InvalidValue
from config.work_trees import check_repo_place
from gateway.access.role_table import Role
from gateway.access.rules import Live
from gateway.errors import Refused
from gateway.placement import Placement
from gateway.sessions import Entry, SessionMeta, entries
from gateway.text.plain import without_code

log = structlog.get_logger()

MAX_NAME = 64


class Repositories:
    def __init__(self, live: Live, placement: Placement | None = None) -> None:
        self._live = live
        self._placement = placement

    def find(self, repo_id: str) -> Repo | None:
        return next((repo for repo in self._live.settings.repos if repo.id == repo_id), None)

    def is_coding_agent(self, agent: str) -> bool:
        """Return whether an agent is a program that needs a repository."""
        found = self._live.settings.agents.get(agent)
        return found is not None and found.backend is Backend.ACP

    @property
    def has_coding_agents(self) -> bool:
        return any(map(self.is_coding_agent, self._live.settings.agents))

    def default(self, agent: str) -> str | None:
        """Return the repository of an agent's sessions if none is named: the first of its list, or the only one."""
        settings = self._live.settings
        named = settings.agents[agent].repos
        if named:
            return named[0]
        return settings.repos[0].id if len(settings.repos) == 1 else None

    def choices(self, agent: str, role: Role) -> list[Repo]:
        """Return the repositories that a person may use with an agent. Owners may use all, others what a role names."""
        is_coding = self.is_coding_agent(agent)
        usual = {*self._live.settings.agents[agent].repos, self.default(agent)} if is_coding else set()
        return [repo for repo in self._live.settings.repos if role.may_use_repo(repo.id, is_usual=repo.id in usual)]

    def choose(self, agent: str, *, role: Role, named: str = "", current: str = "") -> str:
        """Return the repository of a new session: the `named` one, that of the `current` session, or the default.

        Raises `Refused` with the choices if the person may not use it, or if none can be chosen for a coding agent.
        Without a name, the session of any other agent has none.
        """
        choices = [repo.id for repo in self.choices(agent, role)]
        if named:
            if named in choices:
                return named
            available = f"Available: {', '.join(choices)}." if choices else "An owner can use all that are configured."
            raise Refused(f"There is no repository {named[:MAX_NAME]} that you can use here. {available}")
        if not self.is_coding_agent(agent):
            return ""
        for candidate in (current, self.default(agent) or ""):
            if candidate in choices:
                return candidate
        if not choices:
            raise Refused(f"The agent {agent} works in a repository, and there is none that you can use with it.")
        raise Refused(f"Which repository? Send /new @{choices[0]} to choose one. Available: {', '.join(choices)}.")

    def workplace(
        self, routed: str, last: SessionMeta | None, *, role: Role, agent: str = "", named: str = ""
    ) -> tuple[str, str]:
        """Return who answers in a new session, and in which repository; empty for none.

        `last` is the session of the chat so far. Without an `agent`, `next_agent` chooses. Raises as `choose`.
        """
        agent = agent or self.next_agent(routed, last, role=role)
        current = last.repo if last is not None and last.agent == agent else ""
        return agent, self.choose(agent, role=role, named=named, current=current)

    def next_agent(self, routed: str, last: SessionMeta | None, *, role: Role) -> str:
        """Return the agent of a new session. `routed` is that of the chat, and `last` its session so far.

        A coding agent that was chosen with /agent stays: its sessions end when they are idle, and the next message
        goes on with it. Any other choice of an agent ends with its session. If the agent of the chat does not answer
        people with this role, the first one that does takes its place.
        """
        agents = self._live.settings.agents
        stays = last is not None and last.agent != routed and self.is_coding_agent(last.agent)
        if last is not None and stays and role.may_choose_agent(last.agent, is_usual=agents[last.agent].choosable):
            return last.agent
        if role.is_answered_by(routed):
            return routed
        named = [each for each in role.settings.agents or () if each in agents]
        return next((each for each in (*named, *agents) if role.is_answered_by(each)), routed)

    async def check(self, repo_id: str, *, by: str, is_git: bool) -> Repo:
        """Return a repository that can be used now. Raises `Refused` otherwise, and logs that.

        `is_git`: it has to be a git work tree, as coding agents need. `by` is for the log.
        """
        repo = self.find(repo_id)
        trouble = await asyncio.to_thread(self.find_trouble, repo, is_git=is_git) if repo else "it is not configured"
        if repo is None or trouble:
            log.warning("repo_refused", security=True, repo=repo_id, by=by, reason=trouble)
            raise Refused(f"The repository {repo_id} can't be used: {without_code(trouble)}.")
        return repo

    def describe_elsewhere(self, repo: Repo) -> str | None:
        """Return why no session can use a repository on the disk of other nodes; empty if one can.

        None if it is on the disk of this node.
        """
        if self._placement is None or self._placement.has(needed := self._placement.needed("", repo.id)):
            return None
        is_there = any(needed <= labels for labels in self._placement.nodes.values())
        return "" if is_there else f"no node of the cluster with the label {repo.label} is running"

    def find_trouble(self, repo: Repo, *, is_git: bool) -> str:
        """Return why a session cannot use a repository, as part of a sentence, or an empty string. Reads the disk."""
        if trouble := repo.find_trouble():
            return trouble
        try:
            check_repo_place(repo.path, self._live.settings.gateway.root_of_repos, is_git=is_git)
        except InvalidValue as error:
            return f"{error}. To fix that, {error.hint}"
        return ""


def opening_entries(repo_id: str) -> list[Entry]:
    """Return the first entries of a session that works in a repository: its tools work there too."""
    return [entries.Workspace(value=repo_id)] if repo_id else []
