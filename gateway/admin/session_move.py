"""Moves sessions to another scope, with everything in the spool and on the disk that belongs to them."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from enum import Enum, auto

import structlog

from config import Settings
from gateway.errors import Refused
from gateway.files.relocation import move_files, moved_line
from gateway.files.store import FileStore
from gateway.memory.queue import moving_operations
from gateway.sessions import Leaving, SessionManager, SessionMeta, SessionStatus, entries
from gateway.sessions.keys import parse_key, session_key
from gateway.sessions.retention import IsBusy, never_busy
from gateway.sessions.storage.codec import DamagedEntry, decode
from gateway.sessions.transfer import readdress, split_lines
from gateway.spool import MoveRows, MoveTimetables, Spool

log = structlog.get_logger()

BUSY = "Session {number} has a running turn or waiting messages. Try again when it is idle."


class Difference(Enum):
    """How the copy of a session differs from the session."""

    NONE = auto()
    OUTDATED = auto()
    """The end is missing: the session was used after it was copied."""
    DIVERGED = auto()
    """Both were used since."""


class SessionMover:
    """A move copies the session under its new key, and then deletes the old one. Both have the same id.

    After a crash in between, both exist. The next move of the old one finds the copy and only finishes the move, unless
    people have used the old one since.
    """

    def __init__(
        self,
        settings: Callable[[], Settings],
        sessions: SessionManager,
        spool: Spool,
        files: FileStore,
        is_busy: IsBusy = never_busy,
    ) -> None:
        self._settings = settings
        self._sessions = sessions
        self._spool = spool
        self._files = files
        self._is_busy = is_busy

    async def move(self, key: str, scope: str, *, activates: bool = False) -> SessionMeta:
        """Move a session to `scope`, where it gets the next free number. Raises `Refused` with nothing lost.

        If it `activates`, or the scope has no other session, the session becomes the active one.
        """
        meta = self._sessions.find(key)
        archived = await self._sessions.archive.find(key) if meta is None else None
        meta = archived.meta if archived is not None else meta
        if meta is None:
            raise Refused("This session doesn't exist. `gatehouse sessions list` shows all sessions.")
        if scope == meta.scope:
            raise Refused("The session is in that scope already.")
        if self._is_busy(key):
            raise Refused(BUSY.format(number=meta.number))
        copy = await self._find_copy(key, scope)
        if copy is None:
            copy = session_key(scope, self._sessions.next_number(scope))
            await self._sessions.import_lines(scope, self._lines(key, copy))
        # The copy must be on the disk, under its name, before the old transcript is deleted.
        await self._sessions.flush()
        if self._sessions.trouble:
            raise Refused(f"{self._sessions.trouble} The session was copied but not removed: move it again later.")
        now = self._sessions.find(key)
        if self._is_busy(key) or (now is not None and now.last_accessed != meta.last_accessed):
            await self._sessions.delete(copy, Leaving.MOVED)
            raise Refused(BUSY.format(number=meta.number))
        if archived is not None and self._sessions.find(copy) is not None:
            archive = self._sessions.archive
            copied = await archive.copy(copy, archived.why, archived.archived_at)
            if copied is None:
                raise Refused(f"Session {meta.number} can't be archived in its new scope now. Move it again later.")
            await archive.archive(copied)
        await self._spool.commit(
            MoveRows(session=key, to=copy, scope=scope, number=parse_key(copy)[1]),
            *await moving_operations(self._spool, key, copy),
        )
        await self._files.move_session(key, copy)
        await self._sessions.delete(key, Leaving.MOVED)
        log.info("session_moved", session=key, to=copy)
        moved = self._sessions.find(copy)
        if moved is None:  # It is archived, or was deleted while it was being moved.
            found = await self._sessions.archive.find(copy)
            if found is None:
                raise Refused("The session was deleted while it was being moved.")
            return found.meta
        active = self._sessions.active(scope)
        # A closed session stays closed: resuming it would open it.
        if activates and moved.status is SessionStatus.ACTIVE and (active is None or active.key != copy):
            await self._sessions.resume(scope, moved.number)
        return self._sessions.find(copy) or moved

    async def move_belongings(self, source: str, target: str) -> list[str]:
        """Move reminders, schedules, notes and workspaces of a scope. Return a sentence for each that stayed."""
        if self._sessions.list(source) or self._sessions.archived_count(source):
            return ["Reminders, schedules, notes and workspaces stay, because sessions are left in the old scope."]
        await self._spool.commit(MoveTimetables(scope=source, to=target))
        left = await move_files(self._settings(), self._files, scopes=(source, target), keys={})
        return [f"{path} stays, because the other scope has its own. Move its content by hand." for path in left]

    async def _find_copy(self, key: str, scope: str) -> str | None:
        """Return the key of the complete copy that an interrupted move has left. Delete an outdated one."""
        wanted = await self._id(key)
        others = [meta.key for meta in self._sessions.list(scope)]
        others += [session.key for session in await self._sessions.archive.list(scope)]
        for other in others:
            if not wanted or await self._id(other) != wanted:
                continue
            difference = await self._compare(key, other)
            if difference is Difference.NONE:
                return other
            if difference is Difference.OUTDATED:
                # The interrupted move may have moved the files already, and they would be deleted with the copy.
                await self._files.move_session(other, key)
                await self._sessions.delete(other, Leaving.MOVED)
        return None

    async def _compare(self, key: str, copy: str) -> Difference:
        """Compare a session with its copy, line by line. New lines of the copy alone are no difference."""
        async with aclosing(self._lines(key, copy)) as lines, aclosing(self._sessions.export_lines(copy)) as blocks:
            copied = split_lines(blocks)
            async for line in lines:
                other = await anext(copied, b"")
                if not other:
                    return Difference.OUTDATED
                if other.rstrip(b"\n") != line.rstrip(b"\n"):
                    return Difference.DIVERGED
        return Difference.NONE

    async def _id(self, key: str) -> str:
        async with aclosing(self._sessions.export_lines(key)) as blocks:
            try:
                header = decode((await anext(blocks, b"")).split(b"\n")[0])
            except DamagedEntry:
                return ""
        return header.id if isinstance(header, entries.Header) else ""

    async def _lines(self, key: str, copy: str) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._sessions.export_lines(key)) as blocks:
            async for line in split_lines(blocks):
                yield moved_line(readdress(line, copy), key, copy)


def scope_of(text: str) -> str:
    """Return the scope that an operator has named in full. Raises `Refused` if it is not one."""
    parts = text.split(":")
    try:
        is_scope = parse_key(text) == (text, 1)
    except ValueError:
        is_scope = False
    if not is_scope or parts[0] != "agent" or len(parts) < 3 or not all(parts) or not text.isprintable():  # noqa: PLR2004
        raise Refused(f"`{text}` is not a scope. Write it in full, like agent:main:web:direct:owner.")
    return text
