"""The memory of a cluster follows a scope to the node that owns it: nodes have files, and the facts are the truth."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog

from config.files import fsync_directory, make_private_directory, write_atomically
from gateway.bounded import BoundedDict
from gateway.memory.statement import Archived, Statement, parse
from gateway.memory.store import MAX_BYTES, MemoryStore, write_memory_file
from gateway.private_files import read_private
from gateway.shards import shard_of
from gateway.spool import SetFact, Spool
from gateway.spool.spool import retry_while_unavailable

log: structlog.stdlib.BoundLogger = structlog.get_logger()

MEMORY_FACTS = "memory/"
"""The prefix of the facts with the memory files: one for each file, by the names of its folder and itself."""
_NOTE_FACTS = "notes/"
"""The prefix of the facts with the notes of older versions."""
_MAX_KNOWN = 10_000
"""Folders that are known to be the same as their facts. Others are read again."""
_MAX_SHARED = 4 * MAX_BYTES
"""Bytes of a scope that are shared. A person may write more into the files of one node."""

_Stamps = dict[str, tuple[int, int, int]]
"""The time, the size and the inode of each file."""


class SharedMemory:
    """Keeps the memory files of the scopes that this node owns the same as their facts. Idle without a cluster.

    1. Before a turn, `fetch` writes the files from the facts, once for each time that the node takes the shard.
    2. After a change, `store` writes the facts of changed files. The result of a tool is recorded after that, so a
       turn that goes on at another node finds the note there.

    `on_fetched` is called with a folder that was written.
    """

    def __init__(self, spool: Spool, on_fetched: Callable[[Path], None]) -> None:
        self._spool = spool
        self._on_fetched = on_fetched
        self._known = BoundedDict[Path, tuple[int | None, _Stamps]](_MAX_KNOWN)
        """By folder, the epoch of the shard in which it was fetched, and the stamps of its files then."""
        self._lock = asyncio.Lock()

    async def fetch(self, scope: str, folder: Path) -> None:
        if self._spool.shards is None:
            return
        epoch = self._spool.shards.epochs.get(shard_of(scope))
        async with self._lock:  # A second turn must not overwrite what the first one adds during this.
            known = self._known.get(folder)
            if known is not None and epoch is not None and known[0] == epoch:
                return
            prefix, old = f"{MEMORY_FACTS}{folder.name}/", f"{_NOTE_FACTS}{folder.name}.jsonl"
            facts = await retry_while_unavailable(partial(self._spool.facts, prefix))
            notes = (await retry_while_unavailable(partial(self._spool.facts, old))).get(old)
            stored = {name.removeprefix(prefix): text for name, text in facts.items()}
            try:
                if await asyncio.to_thread(_write, folder, stored, notes):
                    self._on_fetched(folder)
            except OSError as error:  # Without the memory, the conversation goes on.
                log.warning("memory_unusable", file=str(folder), reason=error.strerror)
                return
            stamps = await asyncio.to_thread(_stamps, folder)
            # Files without a fact may be older than the cluster: they are stored now.
            self._known[folder] = (epoch, {name: stamp for name, stamp in stamps.items() if name in stored})
            also = [SetFact(name=old, value=None)] if notes is not None else []
            await self._store(scope, folder, also)

    async def statements(self, scope: str, folder: Path) -> Sequence[Statement]:
        """Return the statements of a scope, even if another node owns it. Raises `OSError` or the spool's errors."""
        if self._spool.shards is None or shard_of(scope) in self._spool.shards:
            await self.fetch(scope, folder)
            return (await asyncio.to_thread(MemoryStore(folder).read)).statements
        facts = await self._spool.facts(f"{MEMORY_FACTS}{folder.name}/")
        parts = (part for name in sorted(facts) for part in parse(facts[name], file=name.rpartition("/")[2]))
        return [part for part in parts if isinstance(part, Statement)]

    async def store(self, scope: str, folder: Path) -> None:
        if self._spool.shards is None:
            return
        async with self._lock:
            await self._store(scope, folder, [])

    async def _store(self, scope: str, folder: Path, also: list[SetFact]) -> None:
        epoch, known = self._known.get(folder, (None, {}))
        try:
            stamps, changed = await asyncio.to_thread(_changed, folder, known)
        except OSError as error:
            log.warning("memory_unusable", file=str(folder), reason=error.strerror)
            return
        facts = [SetFact(name=f"{MEMORY_FACTS}{folder.name}/{name}", value=text) for name, text in changed.items()]
        if sum(len(fact.value or "") for fact in facts) > _MAX_SHARED:
            log.warning("memory_not_shared", folder=str(folder), limit=_MAX_SHARED)
            return
        if facts or also:
            check = scope if epoch is not None else None
            await retry_while_unavailable(partial(self._spool.commit, *facts, *also, scope=check))
        self._known[folder] = (epoch, stamps)


def _stamps(folder: Path) -> _Stamps:
    found: _Stamps = {}
    with suppress(FileNotFoundError), os.scandir(folder) as files:
        for file in files:
            if file.name.endswith(".md") and file.name[0] != "." and file.is_file(follow_symlinks=False):
                status = file.stat(follow_symlinks=False)
                found[file.name] = (status.st_mtime_ns, status.st_size, status.st_ino)
    return found


def _changed(folder: Path, known: _Stamps) -> tuple[_Stamps, Mapping[str, str | None]]:
    """Return the stamps of the files, and the content of those that differ from the `known` ones. None: it is gone."""
    stamps = _stamps(folder)
    changed: dict[str, str | None] = {name: None for name in known if name not in stamps}
    for name, stamp in stamps.items():
        if known.get(name) != stamp:
            # PostgreSQL has no U+0000.
            changed[name] = read_private(folder / name).decode(errors="replace").replace("\0", "\ufffd")
    return stamps, changed


def _delete_repeated(folder: Path, stored: Mapping[str, str]) -> bool:
    """Delete files that this node wrote while it archived sessions, and died before it stored them.

    Another node has archived these sessions since, and what it noted is `stored`. Returns whether there were any.
    """
    marks = [part for text in stored.values() for part in parse(text) if isinstance(part, Archived)]
    known = {mark.id: mark.seq for mark in sorted(marks, key=lambda each: each.seq) if not mark.is_outline}
    is_changed = False
    for name in _stamps(folder).keys() - stored.keys():
        parts = parse(read_private(folder / name).decode(errors="replace"))
        own = [part for part in parts if isinstance(part, Archived)]
        is_ours = all(part.sources for part in parts if isinstance(part, Statement))
        if own and is_ours and all(mark.seq <= known.get(mark.id, -1) for mark in own):
            (folder / name).unlink()
            is_changed = True
    return is_changed


def _write(folder: Path, stored: Mapping[str, str], notes: str | None) -> bool:
    """Write the files, and take over notes of an older version. Returns whether anything was written."""
    is_changed = False
    if stored:
        make_private_directory(folder)
        with MemoryStore(folder).locked():
            for name, text in stored.items():
                path, content = folder / Path(name).name, text.encode()
                with suppress(FileNotFoundError):
                    if read_private(path) == content:
                        continue
                write_memory_file(path, content)
                is_changed = True
            is_changed = _delete_repeated(folder, stored) or is_changed
    if notes is not None:
        make_private_directory(folder.parent)
        write_atomically(folder.with_name(f"{folder.name}.jsonl"), notes.encode())
        fsync_directory(folder.parent)
    MemoryStore(folder).read()  # Takes over the notes, those of this node's disk too.
    return is_changed or notes is not None
