"""Workspaces of coding agents: the repository of a session, or a git worktree of its own.

A fact in the spool remembers the commit at which a session has started, and its worktree. It is stored before git makes
the worktree and changed after, so a crash at any point leaves something that `ensure` and `reconcile` can repair.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic

import msgspec
import structlog
from msgspec.structs import replace

from config import AgentSettings, Repo
from config.errors import InvalidValue
from config.files import make_private_directory
from config.work_trees import find_git_folder
from gateway.aio import KeyedLocks
from gateway.errors import Refused
from gateway.private_files import delete_tree
from gateway.repos.git import Git
from gateway.repos.repositories import Repositories
from gateway.sessions import SessionManager, SessionMeta, SessionStatus
from gateway.sessions.keys import parse_key
from gateway.shards import shard_of
from gateway.spool import SetFact, Spool, SpoolUnavailable
from gateway.spool.spool import retry_while_unavailable

log = structlog.get_logger()

WORKSPACE_FACTS = "workspaces/"
FOLDER = "worktrees"
"""In the data directory."""
HAS_CHANGES = "it has changes"
_TIDY_INTERVAL = 30.0
_RETRY_INTERVAL = 600.0
"""Seconds until the deletion of a worktree is tried again."""
_REMOVED = ".removed"
"""The folder for worktrees that are being deleted. No repository has this id."""


class RepoWorkspace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a coding agent works. Its sandbox needs the `writable` folders: git keeps the history in one of them."""

    folder: Path
    writable: tuple[Path, ...]
    repo: Repo
    base: str
    """The commit at which the session has started; empty if the repository had none."""
    inode: tuple[int, int]
    """The device and the number of the folder: another one may take its place."""

    @property
    def env(self) -> dict[str, str]:
        """Variables for the agent's own git: `git gc` forgets worktrees that are not in its sandbox."""
        return {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "gc.worktreePruneExpire",
            "GIT_CONFIG_VALUE_0": "never",
        }


class StoredWorkspace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the spool knows about the workspace of a session."""

    session: str
    """The key of the session. Another session may get the same key later, so the id is what counts."""
    id: str
    repo: str
    base: str
    has_worktree: bool = False
    is_ready: bool = True
    """False while git makes the worktree. No agent has worked in it then."""

    @property
    def branch(self) -> str:
        return f"gatehouse/{self.id[:13]}"


class Worktrees:
    """`data_dir` is ours: no tool and no repository may lie in it, but for these folders.

    `is_busy` says whether a turn of the session with a key is running or waiting.
    """

    def __init__(
        self,
        *,
        data_dir: Path,
        repos: Repositories,
        git: Git,
        sessions: SessionManager,
        spool: Spool,
        is_busy: Callable[[str], bool],
    ) -> None:
        self.root = data_dir / FOLDER
        self._repos = repos
        self._git = git
        self._sessions = sessions
        self._spool = spool
        self._is_busy = is_busy
        self._stored: dict[str, StoredWorkspace] = {}
        self.kept: dict[str, str] = {}
        """The worktrees of sessions that have ended, by their folder, with the reason why they were not deleted."""
        self.before_removal: Callable[[str], Awaitable[None]] = _nothing_runs
        """Ends the program of the session with a key, which may be about to write to its worktree."""
        self._retry_at: dict[str, float] = {}
        self._locks = KeyedLocks()

    def read(self, facts: Mapping[str, str]) -> None:
        """Load what the last run has stored."""
        for fact, value in facts.items():
            try:
                stored = msgspec.json.decode(value, type=StoredWorkspace)
            except msgspec.MsgspecError:
                log.warning("workspace_fact_unreadable", fact=fact)
                continue
            self._stored[stored.id] = stored

    def take(self, facts: Mapping[str, str], shards: Collection[int]) -> None:
        """Load what concerns the sessions of shards that this node of a cluster has taken."""
        self.forget(shards)
        others = {stored.id for stored in self._stored.values()}
        self.read(facts)
        for stored in list(self._stored.values()):
            if stored.id not in others and shard_of(parse_key(stored.session)[0]) not in shards:
                del self._stored[stored.id]

    def forget(self, shards: Collection[int]) -> None:
        """Forget the sessions of shards that this node does not own any more. Their worktrees stay."""
        for stored in list(self._stored.values()):
            if shard_of(parse_key(stored.session)[0]) in shards:
                del self._stored[stored.id]

    async def open_workspace(self, session: SessionMeta, agent: AgentSettings) -> RepoWorkspace:
        """Return where the agent of a session works. Make its worktree, and store where it starts, if that is new.

        Raises `Refused` if the session has no repository, or if that cannot be used now.
        """
        if not session.repo:
            raise Refused(
                f"Session {session.number} has no repository, and {session.agent} needs one. "
                "/repos lists them, and /new @<repository> starts a session with one."
            )
        repo = await self._repos.check(session.repo, by=session.key, is_git=True)
        stored = self._stored.get(session.id)
        if stored is None and not agent.worktree:
            stored = await self._store(
                StoredWorkspace(session=session.key, id=session.id, repo=repo.id, base=await self._git.head(repo.path))
            )
        if stored is None or stored.has_worktree:
            folder = await self.ensure(session, repo)
        else:
            folder = repo.path
        return RepoWorkspace(
            folder=folder,
            writable=await asyncio.to_thread(self.writable, session, repo),
            repo=repo,
            base=self.base(session),
            inode=await asyncio.to_thread(_inode, folder),
        )

    async def is_current(self, session: SessionMeta, workspace: RepoWorkspace) -> bool:
        """Return whether a program that runs in `workspace` still works where the session does.

        Raises `Refused` if the repository cannot be used now.
        """
        await self._repos.check(session.repo, by=session.key, is_git=True)
        return await asyncio.to_thread(_inode, workspace.folder) == workspace.inode

    def base(self, session: SessionMeta) -> str:
        """Return the commit at which a session has started; empty if that is not known."""
        stored = self._stored.get(session.id)
        return "" if stored is None else stored.base

    def folder(self, session: SessionMeta, repo: Repo) -> Path:
        """Return where a session works now. It may not have begun yet."""
        stored = self._stored.get(session.id)
        has_worktree = stored is not None and stored.has_worktree and stored.is_ready
        return self.path(session, repo) if has_worktree else repo.path

    def path(self, session: SessionMeta, repo: Repo) -> Path:
        """Return the folder of the worktree that a session has or would have."""
        return self._path(repo.id, session.id)

    def writable(self, session: SessionMeta, repo: Repo) -> tuple[Path, ...]:
        """Return the folders that the sandbox of a session's agent has to be able to write to. Reads the disk."""
        try:
            git_folder = find_git_folder(repo.path)
        except InvalidValue as error:
            raise Refused(f"The repository {repo.id} can't be used: {error}.") from error
        folder = self.folder(session, repo)
        return (folder,) if git_folder.is_relative_to(folder) else (folder, git_folder)

    async def ensure(self, session: SessionMeta, repo: Repo) -> Path:
        """Return the worktree of a session. Make it if it does not exist, or if a crash has interrupted that."""
        path = self.path(session, repo)
        async with self._locked(repo.id):
            stored = self._stored.get(session.id)
            if stored is not None and stored.is_ready and await asyncio.to_thread(_is_used, path):
                await asyncio.to_thread(_check, path, repo)
                self.kept.pop(str(path), None)
                return path
            if stored is None or not stored.has_worktree:
                base = await self._git.head(repo.path)
                if not base:
                    raise Refused(f"The repository {repo.id} has no commits yet. Make the first one, then try again.")
                stored = StoredWorkspace(
                    session=session.key, id=session.id, repo=repo.id, base=base, has_worktree=True, is_ready=False
                )
            await self._store(replace(stored, is_ready=False))
            # No agent has worked in it: either it was never ready, or nothing is left of it.
            try:
                await asyncio.to_thread(delete_tree, path)
                await asyncio.to_thread(make_private_directory, path)
            except OSError as error:
                raise Refused(f"I can't make a worktree for this session: {error.strerror} ({path}).") from error
            await self._git.add_worktree(repo.path, path, branch=stored.branch, base=stored.base)
            await self._store(replace(stored, is_ready=True))
            self.kept.pop(str(path), None)
            log.info("worktree_added", session=session.key, repo=repo.id, folder=str(path), branch=stored.branch)
        return path

    async def run(self) -> None:
        """Tidy up until cancelled. Not a part of housekeeping: git may take minutes, and flushes must not wait."""
        while True:
            await self.tidy_up()
            await asyncio.sleep(_TIDY_INTERVAL)

    async def reconcile(self) -> None:
        """Delete the clean worktrees of sessions that have ended or are gone, and forget sessions that are gone.

        Worktrees that were kept for their changes are not looked at again until they are used, or until the next start.
        Those that could not be deleted are tried again after a while.
        """
        for stored in list(self._stored.values()):
            path = str(self._path(stored.repo, stored.id))
            # Git may take a minute to fail, and turns in the same repository wait for it.
            if self.kept.get(path) != HAS_CHANGES and monotonic() >= self._retry_at.get(path, 0.0):
                await self._reconcile(stored)

    async def tidy_up(self) -> None:
        """Do the same, and report worktrees that no fact tells about: the spool was lost or restored."""
        known = {self._path(stored.repo, stored.id) for stored in self._stored.values()}
        try:
            for path in await asyncio.to_thread(lambda: sorted(self.root.glob("[!.]*/*"))):
                if path not in known:
                    self._keep(path, "its session is not known")
            await self.reconcile()
        except (OSError, SpoolUnavailable) as error:  # The next round tries again.
            log.warning("worktrees_not_tidied", reason=str(error))

    async def _reconcile(self, stored: StoredWorkspace) -> None:
        # The lock is held to the end: a turn that opens the workspace in between finds either all of it or nothing.
        async with self._locked(stored.repo):
            session = self._sessions.find(stored.session)
            is_gone = session is None or session.id != stored.id
            is_active = session is not None and not is_gone and session.status is SessionStatus.ACTIVE
            if self._stored.get(stored.id) != stored or is_active or self._is_busy(stored.session):
                return
            if session is None or not is_gone:  # Otherwise the key belongs to another session by now.
                await self.before_removal(stored.session)
            if stored.has_worktree and not await self._remove(stored):
                return
            # The base of a session that can be resumed is still of use, unless its worktree starts afresh.
            if stored.has_worktree or is_gone:
                await self._spool.commit(SetFact(name=WORKSPACE_FACTS + stored.id, value=None))
                self._stored.pop(stored.id, None)

    async def _remove(self, stored: StoredWorkspace) -> bool:
        """Delete a worktree if it is clean. Returns whether it is gone."""
        path, repo = self._path(stored.repo, stored.id), self._repos.find(stored.repo)
        if repo is None:
            if not await asyncio.to_thread(_is_used, path):
                return True
            self._keep(path, "its repository is not configured", stored)
            return False
        try:
            is_used = stored.is_ready and await asyncio.to_thread(_is_used, path)
            if is_used and await self._git.has_changes(path, base=stored.base, branch=stored.branch):
                self._keep(path, HAS_CHANGES, stored)
                return False
            # 1. The folder, so that git finds nothing to delete: in the sandbox it could not.
            # 2. What the repository knows about it. After a crash in between, the next round does the rest.
            await asyncio.to_thread(_delete, path, self.root / _REMOVED / stored.id)
            await self._git.remove_worktree(repo.path, path, branch=stored.branch, base=stored.base)
        except (Refused, OSError) as error:
            self._keep(path, str(error), stored)
            return False
        self.kept.pop(str(path), None)
        log.info("worktree_removed", session=stored.session, repo=stored.repo, folder=str(path))
        return True

    def _keep(self, path: Path, reason: str, stored: StoredWorkspace | None = None) -> None:
        if str(path) not in self.kept:
            session = None if stored is None else stored.session
            log.info("worktree_kept", session=session, folder=str(path), reason=reason)
        self.kept[str(path)] = reason
        if reason != HAS_CHANGES:
            self._retry_at[str(path)] = monotonic() + _RETRY_INTERVAL

    async def _store(self, stored: StoredWorkspace) -> StoredWorkspace:
        value = msgspec.json.encode(stored).decode()
        # A turn waits for it, as it does for its entries.
        await retry_while_unavailable(
            partial(self._spool.commit, SetFact(name=WORKSPACE_FACTS + stored.id, value=value))
        )
        self._stored[stored.id] = stored
        return stored

    def _path(self, repo: str, session_id: str) -> Path:
        return self.root / repo / session_id

    @asynccontextmanager
    async def _locked(self, repo: str) -> AsyncIterator[None]:
        await self._locks.acquire(repo)
        try:
            yield
        finally:
            self._locks.release(repo)


async def _nothing_runs(_session: str) -> None:
    pass


def _inode(folder: Path) -> tuple[int, int]:
    try:
        found = folder.lstat()
    except OSError:
        return (0, 0)
    return found.st_dev, found.st_ino


def _is_used(path: Path) -> bool:
    """Return whether there is anything in a worktree."""
    with suppress(OSError):
        return any(path.iterdir())
    return os.path.lexists(path) and not path.is_dir()


def _check(path: Path, repo: Repo) -> None:
    """Refuse a worktree that is not one of `repo` any more. It may have changes, so it is not replaced."""
    try:
        is_ours = find_git_folder(path) == find_git_folder(repo.path)
    except InvalidValue as error:
        raise Refused(_damaged(path, str(error))) from error
    if not is_ours:
        raise Refused(_damaged(path, f"it does not belong to {repo.path}"))


def _damaged(path: Path, reason: str) -> str:
    return f"The worktree of this session in {path} can't be used: {reason}. /new starts another session."


def _delete(path: Path, removed: Path) -> None:
    """Delete a worktree. It is moved to `removed` first: after a crash, half of it must not look like changes."""
    delete_tree(removed)
    make_private_directory(removed.parent)
    if os.path.lexists(path):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)  # An agent may have locked it.
        path.rename(removed)
    delete_tree(removed)
