"""Migrates the workspaces of older versions, which everyone who talked to an agent shared.

Attachments were copied into them. Each copy goes to the session that received it. A folder that a single scope has used
becomes the private workspace of that scope. All other folders stay where they are, and only agents with a shared
workspace use them. Nothing becomes visible to more people. Each step can be repeated, so a crash loses nothing.
"""

import asyncio
import os
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import structlog

from config import Settings, WorkspaceMode
from config.files import fsync_directory, make_private_directory
from config.types import SLUG
from gateway.errors import Refused
from gateway.files.identify import shorten_name
from gateway.files.store import FileStore, folder_of
from gateway.files.workspaces import shared_folder, unreachable_folders, workspace_of
from gateway.private_files import DIRECTORY_MODE, open_private
from gateway.sessions import SessionManager, SessionMeta
from gateway.sessions.entries import User
from gateway.sessions.storage.codec import DamagedEntry, decode
from gateway.spool import SetFact, Spool, SpoolUnavailable

log: structlog.stdlib.BoundLogger = structlog.get_logger()

MIGRATED = "workspaces_migrated"
"""The name of a fact in the spool. Its value is a `MigrationPlan`."""

_FOLDER = "attachments"
_COPY = re.compile(r"([0-9a-f]{8})-\d+-.+", re.DOTALL)
"""The name of a copy: the first digits of the turn, the number of the file in its message, and the file's name."""
_ORIGINAL = re.compile(r"([0-9a-f]{8})[0-9a-f]{24}(-\d+-.+)", re.DOTALL)
_TOLERANCE = timedelta(days=1)
_BLOCK_SIZE = 1 << 20

Owners = defaultdict[str, set[str]]
"""The sessions that have received a file, by the name of its copy."""


class MigrationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The value of the fact. It is committed before the first move, and decides what a start after a crash does.

    Deciding again could be wrong: by then, a new scope may be the only one.
    """

    moves: dict[str, str]
    """The scopes that get the old folder of an agent, by agent. Empty once these were moved, or could not be."""
    is_done: bool = False


async def migrate_workspaces(settings: Settings, *, spool: Spool, store: FileStore, sessions: SessionManager) -> None:
    """Migrate at the first start of this version. Call this before any turn runs."""
    known = (await spool.facts(MIGRATED)).get(MIGRATED)
    try:
        plan = None if known is None else msgspec.json.decode(known, type=MigrationPlan)
    except msgspec.DecodeError:  # Deciding again could be wrong, and the folders are safe where they are.
        log.warning("migration_plan_invalid", fact=MIGRATED)
        return
    if plan is not None and plan.is_done:
        return
    metas = {meta.key: meta for scope in sessions.scopes() for meta in sessions.list(scope)}
    users: defaultdict[str, set[str]] = defaultdict(set)
    for scope in sessions.scopes():
        users[scope.partition(":")[2].partition(":")[0]].add(scope)  # The agent that answers there without a choice.
    for meta in metas.values():
        users[meta.agent].add(meta.scope)
    # That scope could see everything in the folder before.
    moves = {agent: next(iter(scopes)) for agent, scopes in users.items() if len(scopes) == 1}
    plan = plan or MigrationPlan(moves=moves)
    try:
        await _commit(spool, plan)
        # An imported session may name any agent, so its name may not be a folder.
        agents = [agent for agent in {*settings.agents, *users} if re.fullmatch(SLUG, agent)]
        folders = [shared_folder(settings.gateway.workspace_root, agent) for agent in agents]
        is_complete = True
        for folder in (*folders, *(repo.path for repo in settings.repos)):
            is_complete &= await _move_attachments(folder, metas, store, sessions)
        await asyncio.to_thread(_move_workspaces, settings, plan.moves)
        await _commit(spool, MigrationPlan(moves={}, is_done=is_complete))
    except SpoolUnavailable as error:  # The next start tries again.
        log.warning("workspaces_not_migrated", reason=str(error))
    for agent, folder in await asyncio.to_thread(unreachable_folders, settings):
        log.warning(
            "shared_workspace_kept",
            folder=str(folder),
            hint=f'No tool can reach it now. Move its files, or set agents.{agent}.workspace = "shared".',
        )


async def _commit(spool: Spool, plan: MigrationPlan) -> None:
    await spool.commit(SetFact(name=MIGRATED, value=msgspec.json.encode(plan).decode()))


async def _move_attachments(
    folder: Path, metas: Mapping[str, SessionMeta], store: FileStore, sessions: SessionManager
) -> bool:
    """Move the copies in `folder` to their sessions. Returns False if the disk refused something."""
    try:
        copies = await asyncio.to_thread(_list_copies, folder)
    except OSError as error:
        log.warning("attachments_not_moved", folder=str(folder), reason=error.strerror)
        return False
    if not copies:
        return True
    # Copies of which the session has the original. Originals of sessions that no longer exist do not count.
    by_folder = {folder_of(key): key for key in metas}
    originals: defaultdict[str, list[Path]] = defaultdict(list)
    owners: Owners = defaultdict(set)
    for path in await store.paths():
        if (name := _copy_name(path.name)) in copies and path.parent.name in by_folder:
            originals[name].append(path)
            owners[name].add(by_folder[path.parent.name])
    try:
        is_complete, left = await asyncio.to_thread(_delete_identical, folder, copies, originals)
    except OSError as error:
        log.warning("attachments_not_moved", folder=str(folder), reason=error.strerror)
        return False
    if not left:
        return is_complete
    # The first digits of a turn are its time, so two sessions may have received a file of that name within seconds. The
    # transcripts tell, even where the originals were deleted to save space.
    await _find_receivers(left, owners, metas.values(), sessions)
    moved = 0
    for name in left:
        if len(owners[name]) != 1:
            continue  # It belongs to a deleted session, or to none: then it stays where everyone saw it.
        (key,) = owners[name]
        try:
            with _opened(folder) as directory:
                await store.adopt(directory, name, key)
        except (OSError, Refused) as error:
            log.warning("attachment_not_moved", file=name, reason=str(error))
            is_complete = False
        else:
            moved += 1
    await asyncio.to_thread(_remove_if_empty, folder)
    log.info("attachments_moved", folder=str(folder), to_sessions=moved, kept=len(left) - moved)
    return is_complete


def _copy_name(stored: str) -> str:
    """Return the name that the copy of a stored file has in a workspace; empty if it cannot have one."""
    match = _ORIGINAL.fullmatch(stored)
    return shorten_name(f"{match[1]}{match[2]}") if match else ""


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """Open the folder with the copies. An agent may have put a link in its place, which is not followed."""
    workspace = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        directory = os.open(_FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=workspace)
    finally:
        os.close(workspace)
    try:
        yield directory
    finally:
        os.close(directory)


def _list_copies(folder: Path) -> frozenset[str]:
    try:
        with _opened(folder) as directory, os.scandir(directory) as found:
            files = [each.name for each in found if each.is_file(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    return frozenset(filter(_COPY.fullmatch, files))


def _delete_identical(
    folder: Path, copies: Iterable[str], originals: Mapping[str, list[Path]]
) -> tuple[bool, list[str]]:
    """Delete copies whose content a session has already. Returns whether the disk allowed it, and the other copies."""
    is_complete, left = True, []
    with _opened(folder) as directory:
        for name in copies:
            try:
                if any(_is_same(directory, name, original) for original in originals.get(name, ())):
                    os.unlink(name, dir_fd=directory)
                else:
                    left.append(name)
            except OSError as error:
                log.warning("attachment_not_moved", file=name, reason=error.strerror)
                is_complete = False
    _remove_if_empty(folder)
    return is_complete, left


def _is_same(directory: int, name: str, original: Path) -> bool:
    with (
        open(open_private(name, directory=directory), "rb") as copy,  # noqa: PTH123 - a descriptor.
        open(open_private(original), "rb") as stored,  # noqa: PTH123 - as above.
    ):
        if os.fstat(copy.fileno()).st_size != os.fstat(stored.fileno()).st_size:
            return False
        while block := copy.read(_BLOCK_SIZE):
            if block != stored.read(_BLOCK_SIZE):
                return False
    return True


async def _find_receivers(
    names: Iterable[str], owners: Owners, metas: Iterable[SessionMeta], sessions: SessionManager
) -> None:
    """Add the sessions whose transcripts name the originals of these copies."""
    wanted = frozenset(names)
    times = [time for name in wanted if (time := _time_of(name)) is not None]
    for meta in metas:
        # Only sessions that existed at that time. Reading all of them could take minutes.
        if not any(meta.created_at - _TOLERANCE <= time <= meta.last_accessed + _TOLERANCE for time in times):
            continue
        try:
            received = [name async for name in _received(meta.key, sessions)]
        except (Refused, OSError) as error:
            log.warning("transcript_not_searched", session=meta.key, reason=str(error))
            continue
        for name in wanted.intersection(received):
            owners[name].add(meta.key)


async def _received(key: str, sessions: SessionManager) -> AsyncIterator[str]:
    """Yield the names of the copies of all files that a session has received."""
    async for line in sessions.export_lines(key):
        if b'"attachments"' not in line:
            continue
        with suppress(DamagedEntry):
            entry = decode(line)
            for file in entry.attachments if isinstance(entry, User) else ():
                folder, _, stored = file.ref.partition("/")
                # People write texts, but not this field: no one can claim the file of another person.
                if folder == folder_of(key):
                    yield _copy_name(stored)


def _time_of(copy: str) -> datetime | None:
    """Return the time of a turn, to 17 seconds: it begins with 8 of the 14 digits of a time in units of 1,024 ns."""
    try:
        return datetime.fromtimestamp((int(copy[:8], 16) << 34) / 1e9, UTC)
    except (ValueError, OverflowError):
        return None


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        (folder / _FOLDER).rmdir()


def _move_workspaces(settings: Settings, moves: Mapping[str, str]) -> None:
    """Make old folders the private workspaces of their scopes."""
    root = settings.gateway.workspace_root
    for agent, table in settings.agents.items():
        if table.workspace is WorkspaceMode.PRIVATE:
            with suppress(OSError):  # Only an empty folder can be removed.
                shared_folder(root, agent).rmdir()
    for agent, folder in unreachable_folders(settings):
        if agent not in moves or folder.is_symlink():
            continue
        target = workspace_of(root, agent, WorkspaceMode.PRIVATE, moves[agent]).path
        try:
            make_private_directory(target.parent)
            folder.chmod(DIRECTORY_MODE)
            folder.rename(target)
            fsync_directory(target.parent)
            fsync_directory(root)
        except OSError as error:
            log.warning("workspace_not_moved", folder=str(folder), reason=error.strerror)
        else:
            log.info("workspace_moved", agent=agent, scope=moves[agent], folder=str(target))
