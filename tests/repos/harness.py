"""Set-up shared by tests with real git repositories."""

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from config import Settings
from gateway.access.rules import Live
from gateway.contract import Address, PeerKind
from gateway.repos.git import Git
from gateway.repos.repositories import Repositories
from gateway.repos.worktrees import WORKSPACE_FACTS, Worktrees
from gateway.sessions import SessionManager, SessionMeta, SessionStatus
from gateway.sessions.session import NewSession
from gateway.spool import Spool
from tests.daemon.harness import settings

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
needs_sandbox = pytest.mark.skipif(
    shutil.which("git") is None or shutil.which("bwrap") is None, reason="needs git and bubblewrap"
)

_IDENTITY = {
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
}


def git(folder: Path, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    """Run git as a person would, outside of any sandbox."""
    done = subprocess.run(
        [shutil.which("git") or "git", *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **_IDENTITY, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def make_repo(folder: Path, **files: str) -> Path:
    """Make a repository with one commit. `files` have `_` for `.` in their names."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    for name, text in (files or {"README_md": "Hello.\n"}).items():
        (folder / name.replace("_", ".")).write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=First")
    return folder


def coding_settings(
    folder: Path, *repos: Path, coder: Mapping[str, object] | None = None, **tables: object
) -> Settings:
    """Return settings with the coding agent `coder` and repositories that are called after their folders."""
    agents = {"coder": {"backend": "acp", "command": ["/bin/true"], **(coder or {})}}
    return settings(
        folder,
        **{"repos": [{"id": repo.name, "path": repo} for repo in repos], "agents": agents, **tables},
    )


SCOPE = "agent:coder:loopback:direct:ada"


class Killed(BaseException):
    """Stands for `kill -9` at a point of the work."""


class KilledGit(Git):
    """Dies at the point that `dies_at` names."""

    dies_at = ""

    async def add_worktree(self, repo: Path, worktree: Path, *, branch: str, base: str) -> None:
        if self.dies_at == "before":
            raise Killed
        await super().add_worktree(repo, worktree, branch=branch, base=base)
        if self.dies_at == "half":
            (worktree / "README.md").unlink()
        if self.dies_at in {"half", "after"}:
            raise Killed

    async def remove_worktree(self, repo: Path, worktree: Path, *, branch: str, base: str) -> None:
        if self.dies_at == "removal":
            raise Killed
        await super().remove_worktree(repo, worktree, branch=branch, base=base)


@dataclass(frozen=True, kw_only=True)
class Desk:
    """Worktrees with what they need."""

    live: Live
    spool: Spool
    sessions: SessionManager
    git: KilledGit
    worktrees: Worktrees
    busy: set[str]

    async def start(self, repo: str = "app") -> SessionMeta:
        return await self.sessions.start_new(
            SCOPE,
            agent="coder",
            origin=Address(channel="loopback", kind=PeerKind.DIRECT, peer="ada"),
            new=NewSession(repo=repo),
        )

    async def open(self, session: SessionMeta) -> Path:
        agent = self.live.settings.agents["coder"]
        return (await self.worktrees.open_workspace(session, agent)).folder

    async def end(self, session: SessionMeta, status: SessionStatus = SessionStatus.COMPLETED) -> None:
        await self.sessions.set_status(session.key, status)


@asynccontextmanager
async def desk(configured: Settings) -> AsyncIterator[Desk]:
    """Open the stores of the last run, or new ones."""
    data, live, busy = configured.gateway.data_dir, Live(configured), set[str]()
    data.mkdir(exist_ok=True)
    async with await Spool.open(data) as spool:
        sessions = await SessionManager.open(
            data / "sessions", configured.session, lambda: datetime.now(UTC), journal=spool
        )
        await sessions.recover()
        repos, runner = Repositories(live), KilledGit(live)
        worktrees = Worktrees(
            data_dir=data, repos=repos, git=runner, sessions=sessions, spool=spool, is_busy=busy.__contains__
        )
        worktrees.read(await spool.facts(WORKSPACE_FACTS))
        yield Desk(live=live, spool=spool, sessions=sessions, git=runner, worktrees=worktrees, busy=busy)
        await sessions.close()
