"""Commands about repositories: `/repos` lists them, and `/diff` shows what has changed since a session started."""

import asyncio
from collections.abc import Sequence
from uuid import uuid4

from config import Repo
from gateway.access.roles import role_in
from gateway.access.rules import Live
from gateway.commands.command import NO_SESSION, Answer, Call, Handlers, is_number
from gateway.contract import Outbound
from gateway.errors import Refused
from gateway.outbound.long_replies import LongReplies
from gateway.repos.git import Git, RepoState
from gateway.repos.repositories import Repositories
from gateway.repos.worktrees import Worktrees
from gateway.sessions import SessionManager, SessionMeta
from gateway.sessions.keys import session_key
from gateway.text import excerpt, printable
from gateway.text.plain import count, in_bytes, without_code

MAX_AT_ONCE = 4
"""Repositories that git looks at in parallel."""
MAX_FILES = 5
"""Changed files that are named."""
MAX_PATH = 80


class RepoCommands:
    def __init__(
        self,
        *,
        live: Live,
        sessions: SessionManager,
        repos: Repositories,
        git: Git,
        worktrees: Worktrees,
        long_replies: LongReplies,
    ) -> None:
        self._live = live
        self._sessions = sessions
        self._repos = repos
        self._git = git
        self._worktrees = worktrees
        self._long_replies = long_replies

    def handlers(self) -> Handlers:
        return {"repos": self.repos, "diff": self.diff}

    async def repos(self, call: Call) -> Answer:
        session = self._sessions.find(call.session) if call.session else None
        agent = call.routed.agent if session is None else session.agent
        choices = self._repos.choices(agent, role_in(self._live, call.inbound))
        if not choices:
            return Answer(text="There are no repositories that you can use here.")
        slots = asyncio.Semaphore(MAX_AT_ONCE)

        async def row(repo: Repo) -> str:
            async with slots:
                return await self._row(repo, is_owner=call.is_owner)

        rows = await asyncio.gather(*map(row, choices))
        bound = None if session is None else session.repo or session.workspace
        marked = [f"{'▸' if repo.id == bound else ' '} {text}" for repo, text in zip(choices, rows, strict=True)]
        kept = self._worktrees.kept
        if kept and call.is_owner:
            marked.append(
                f"Kept: {count(len(kept), 'worktree')} of sessions that have ended, mostly with changes, "
                f"in {self._worktrees.root}"
            )
        return Answer(text="\n".join(["Repositories", *marked, "/new @<repository> starts a session with one"]))

    async def _row(self, repo: Repo, *, is_owner: bool) -> str:
        facts = [repo.id]
        if repo.name != repo.id:
            facts.append(repo.name)
        if is_owner:
            facts.append(str(repo.path))
        # A folder may come and go while the gateway runs, such as one on another disk.
        is_git = self._repos.has_coding_agents
        elsewhere = self._repos.describe_elsewhere(repo)
        if elsewhere == "":
            return " · ".join([*facts, f"on a machine with the label {repo.label}"])
        if trouble := elsewhere or await asyncio.to_thread(self._repos.find_trouble, repo, is_git=is_git):
            # The reason names folders, so only an owner sees it.
            facts.append(f"unavailable: {without_code(trouble)}" if is_owner else "unavailable")
        else:
            try:
                state = await self._git.state(repo.path)
            except Refused:  # Without git or a sandbox there is no branch to show.
                pass
            else:
                changed = f", {count(len(state.changed), 'changed file')}" if state.changed else ""
                facts.append(f"{_shown(state.branch)}{changed}")
        return " · ".join(facts)

    async def diff(self, call: Call) -> Answer:
        is_numbered = is_number(call.argument.removeprefix("#"))
        path = "" if is_numbered else call.argument
        key = call.session
        if is_numbered:
            key = session_key(call.routed.scope, int(call.argument.removeprefix("#")) or 1)
        session = self._sessions.find(key) if key is not None else None
        if session is None:
            raise Refused(NO_SESSION if not is_numbered else f"There is no session {call.argument} here.")
        repo_id = session.repo or session.workspace
        if not repo_id:
            raise Refused(f"Session {session.number} works in no repository. /new @<repository> starts one that does.")
        repo = await self._repos.check(repo_id, by=call.inbound.sender.id, is_git=True)
        changes = await self._git.diff(
            self._worktrees.folder(session, repo), self._worktrees.base(session) or None, path=path
        )
        changes = printable(changes).strip("\n")
        where = f" of {excerpt(printable(path), MAX_PATH)}" if path else ""
        if not changes:
            return Answer(text=f"Nothing{where} has changed in {repo.id} since session {session.number} started.")
        name = f"session-{session.number}.diff"
        notice = Outbound(address=call.inbound.address, text=changes)
        stored = f"diff-{uuid4().hex}"
        file = await self._long_replies.notice_as_file(notice, session=session.key, key=stored, name=name)
        if file is None:
            return Answer(text=changes)
        summary = _summary(changes)
        text = f"{summary} in {repo.id}. That is too long for a chat ({in_bytes(file.size)}): the file {name} has it."
        return Answer(text=text, files=(file,))

    async def describe(self, session: SessionMeta, *, is_owner: bool) -> Sequence[str]:
        """Return lines about the repository of a session, for `/session info`."""
        repo_id = session.repo or session.workspace
        if not repo_id:
            return ()
        repo = self._repos.find(repo_id)
        if repo is None:
            return (f"repository {repo_id}, which is no longer configured",)
        folder = self._worktrees.folder(session, repo)
        try:
            # An agent may have replaced the folder by a link to another repository, if its own one contains it.
            await self._repos.check(repo_id, by=session.key, is_git=False)
            state = await self._git.state(folder)
        except Refused:
            return (f"repository {repo_id}",)
        lines = [f"repository {repo_id}, {_describe(state)}"]
        if folder != repo.path and is_owner:
            lines.append(f"worktree {folder}")
        return lines


def _describe(state: RepoState) -> str:
    ahead = f", {count(state.ahead, 'commit')} ahead" if state.ahead else ""
    named = ", ".join(f"{file.status} {_shown(file.path)}" for file in state.changed[:MAX_FILES])
    more = len(state.changed) - MAX_FILES
    changed = f"{count(len(state.changed), 'changed file')}: {named}" if state.changed else "no changes"
    return f"branch {_shown(state.branch)}{ahead}, {changed}{f' and {more} more' if more > 0 else ''}"


def _shown(name: str) -> str:
    """Return a name that an agent may have chosen, on one line."""
    return excerpt(printable(name), MAX_PATH)


def _summary(changes: str) -> str:
    """Return the line of a diff that counts files and lines, such as `2 files changed, 3 insertions(+)`."""
    head = changes.partition("\ndiff --git ")[0].splitlines()
    return next((line.strip() for line in reversed(head) if " changed, " in line), "Changes")
