"""The notes of a cluster follow a scope to the node that owns it: nodes have files, and the facts are the truth."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import structlog

from config.files import make_private_directory, write_atomically
from gateway.bounded import BoundedDict
from gateway.private_files import read_private
from gateway.shards import shard_of
from gateway.spool import SetFact, Spool
from gateway.spool.spool import retry_while_unavailable

log = structlog.get_logger()

NOTE_FACTS = "notes/"
"""The prefix of the facts with the notes of each scope, by the name of their file."""
_MAX_KNOWN = 10_000
"""Files that are known to be the same as their fact. Others are read again."""

_Stamp = tuple[int, int]
"""The time and the size of a file."""


class SharedNotes:
    """Keeps the notes files of the scopes that this node owns the same as their facts. Does nothing without a cluster.

    1. Before a turn, `fetch` writes the file from the fact, once for each time that the node takes the shard.
    2. After a tool, `store` writes the fact from the file if that has changed. The result of the tool is recorded
       after that, so a turn that goes on at another node finds the note there.

    `on_fetched` is called with a file that was written.
    """

    def __init__(self, spool: Spool, on_fetched: Callable[[Path], None]) -> None:
        self._spool = spool
        self._on_fetched = on_fetched
        self._known = BoundedDict[Path, tuple[int | None, _Stamp | None]](_MAX_KNOWN)
        """By file, the epoch of the shard in which it was fetched, and its stamp then."""
        self._fetching = asyncio.Lock()

    async def fetch(self, scope: str, path: Path) -> None:
        if self._spool.shards is None:
            return
        epoch = self._spool.shards.epochs.get(shard_of(scope))
        async with self._fetching:  # A second turn must not overwrite what the first one adds during this.
            known = self._known.get(path)
            if known is not None and epoch is not None and known[0] == epoch:
                return
            name = f"{NOTE_FACTS}{path.name}"
            stored = (await retry_while_unavailable(partial(self._spool.facts, name))).get(name)
            if stored is None:  # The file may be older than the cluster.
                self._known[path] = (epoch, None)
                await self.store(scope, path)
                return
            try:
                if await asyncio.to_thread(_write, path, stored.encode()):
                    self._on_fetched(path)
            except OSError as error:  # Without the notes, the conversation goes on.
                log.warning("notes_unusable", file=str(path), reason=error.strerror)
                return
            self._known[path] = (epoch, await asyncio.to_thread(_stamp, path))

    async def store(self, scope: str, path: Path) -> None:
        if self._spool.shards is None:
            return
        epoch, known = self._known.get(path, (None, None))
        stamp = await asyncio.to_thread(_stamp, path)
        if stamp is None or stamp == known:
            return
        try:
            content = await asyncio.to_thread(read_private, path)
        except OSError as error:
            log.warning("notes_unusable", file=str(path), reason=error.strerror)
            return
        text = content.decode(errors="replace").replace("\0", "\ufffd")  # PostgreSQL has no U+0000.
        note = SetFact(name=f"{NOTE_FACTS}{path.name}", value=text)
        check = scope if epoch is not None else None
        await retry_while_unavailable(partial(self._spool.commit, note, scope=check))
        self._known[path] = (epoch, stamp)


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _write(path: Path, content: bytes) -> bool:
    """Write a file unless it has that content. Returns whether it was written."""
    try:
        if read_private(path) == content:
            return False
    except FileNotFoundError:
        make_private_directory(path.parent)
    write_atomically(path, content)
    return True
