"""Moves the files of a scope whose sessions get other keys: attachments, memory and private workspaces."""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path

import structlog

from config import Settings
from config.files import fsync_directory
from config.types import PRIVATE_WORKSPACES
from gateway.files.store import FileStore, folder_of
from gateway.memory.store import memory_folder

log: structlog.stdlib.BoundLogger = structlog.get_logger()


async def move_files(
    settings: Settings, store: FileStore, *, scopes: tuple[str, str], keys: Mapping[str, str]
) -> list[Path]:
    """Move the files of the first scope to the second one. `keys` has the new key of each moved session.

    Returns the memory and workspaces that stay, because the second scope has its own. Repeating this is harmless. The
    transcripts name attachments by the folder of their session: use `moved_line` for each line.
    """
    for old, new in keys.items():
        await store.move_session(old, new)
    return await asyncio.to_thread(lambda: list(_move_folders(settings, *scopes)))


def moved_line(line: bytes, old: str, new: str) -> bytes:
    """Return a line of a transcript with references to the files of the session's new key."""
    # The name of the folder has a hash, so no other text can be the same by chance.
    return line.replace(folder_of(old).encode(), folder_of(new).encode())


def _move_folders(settings: Settings, old: str, new: str) -> Iterator[Path]:
    memory = memory_folder(settings.gateway.data_dir, old), memory_folder(settings.gateway.data_dir, new)
    workspaces = settings.gateway.workspace_root.glob(f"*{PRIVATE_WORKSPACES}")
    # The notes of an older version are files next to the folder.
    places = [memory, (memory[0].with_suffix(".jsonl"), memory[1].with_suffix(".jsonl"))]
    places += [(folder / folder_of(old), folder / folder_of(new)) for folder in sorted(workspaces)]
    for source, target in places:
        if source.is_symlink() or not source.exists():
            continue
        if target.exists():
            yield source
            continue
        source.rename(target)
        fsync_directory(target.parent)
        log.info("scope_files_moved", source=str(source), target=str(target))
