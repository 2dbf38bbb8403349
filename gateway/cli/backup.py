"""`gatehouse backup` writes all data to one private file, and `gatehouse restore` reads it back."""

import asyncio
import gzip
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from config import Loaded, LogFormat, LogLevel, StorageEngine
from gateway.admin.archive import open_stores, receive_stream
from gateway.admin.client import ControlClient, is_running
from gateway.backup.create import CONFIG, Backup
from gateway.backup.restore import restore_backup
from gateway.cli.common import EXIT_OK, command_parser, load_settings, output_file
from gateway.data_dir import DataDirLock, prepare_data_dir
from gateway.observability.logging import configure, secrets_in
from gateway.storage_copy.open import identity_of
from gateway.text import printable
from gateway.text.plain import count, in_bytes

_COMPRESSION = 6
_SKIPPED_SHOWN = 5


def backup(arguments: Sequence[str], *, config: Path | None) -> int:
    description = "Write sessions, spool, notes and files to one archive. The gateway may be running."
    parser = command_parser("backup", description, config)
    parser.add_argument("file", type=Path, metavar="FILE", help="archive to write, like backup.tar.gz")
    parser.add_argument("--with-secrets", action="store_true", help="include the configuration and the HTTP token")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    options = parser.parse_args(arguments)
    os.umask(0o077)  # The archive contains conversations.
    loaded = _load(options.config)
    configure(LogLevel.ERROR, LogFormat.CONSOLE, secrets_in(loaded.settings), sys.stderr)

    async def save() -> None:
        async with _open_source(loaded, has_secrets=options.with_secrets) as blocks:
            with (
                output_file(options.file, overwrite=options.force) as file,
                gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0, compresslevel=_COMPRESSION) as packed,
            ):
                async for block in blocks:
                    await asyncio.to_thread(packed.write, block)  # Compressing blocks, and the source must go on.

    asyncio.run(save())
    written = f"Wrote {printable(str(options.file))} ({in_bytes(options.file.stat().st_size)})"
    if options.with_secrets:
        print(f"{written}. It includes the configuration and the secrets, so keep it safe.")
    elif loaded.path is None:
        print(f"{written} without the HTTP token. Use --with-secrets to include it.")
    else:
        config_file = printable(str(loaded.path))
        print(f"{written} without the configuration ({config_file}). Use --with-secrets to include it.")
    return EXIT_OK


def _load(config: Path | None) -> Loaded:
    """Load the settings. Secrets are resolved only if they are needed, because this shell may lack them."""
    loaded = load_settings(config, resolves=False)
    is_database = loaded.settings.storage.engine is not StorageEngine.FILES
    if is_database and not is_running(loaded.settings.gateway.data_dir):
        return load_settings(config)
    return loaded


@asynccontextmanager
async def _open_source(loaded: Loaded, *, has_secrets: bool) -> AsyncIterator[AsyncIterator[bytes]]:
    """Yield the blocks of a backup, made by the running daemon or by us under the daemon's lock."""
    directory = loaded.settings.gateway.data_dir
    if await asyncio.to_thread(is_running, directory):
        async with ControlClient(directory) as control:
            path = f"/backup?secrets={'yes' if has_secrets else 'no'}"
            async with aclosing(receive_stream(control, path)) as blocks:
                yield blocks
        return
    async with open_stores(loaded.settings) as (sessions, spool):
        if spool is None:
            raise RuntimeError("open_stores() opens the spool unless as_found is set.")
        local = Backup(directory, spool=spool, sessions=sessions, now=lambda: datetime.now(UTC), config=loaded.path)
        async with aclosing(local.blocks(has_secrets=has_secrets)) as blocks:
            yield blocks


def restore(arguments: Sequence[str], *, config: Path | None) -> int:
    description = "Restore a backup into the data directory. The gateway must not be running."
    parser = command_parser("restore", description, config)
    parser.add_argument("file", type=Path, metavar="FILE", help="archive written by `gatehouse backup`")
    parser.add_argument("--replace", action="store_true", help="move the current contents of the data directory aside")
    options = parser.parse_args(arguments)
    os.umask(0o077)
    settings = _load(options.config).settings
    directory, storage = settings.gateway.data_dir, settings.storage
    configure(LogLevel.ERROR, LogFormat.CONSOLE, secrets_in(settings), sys.stderr)
    prepare_data_dir(directory)
    with DataDirLock(directory):
        restored = restore_backup(
            options.file, directory, replaces=options.replace, now=datetime.now(UTC), storage=storage
        )
    manifest = restored.manifest
    sessions, taken_at = count(manifest.transcripts(), "session"), printable(manifest.taken_at)
    place = printable(str(directory))
    if storage.engine is not StorageEngine.FILES:
        place = f"{printable(identity_of(storage, directory))}, and the files into {place}"
    print(f"Restored {sessions} into {place}, as of {taken_at}.")
    if restored.set_aside:
        print(f"The previous contents are in {printable(str(restored.set_aside))}.")
    if CONFIG in manifest.members:
        print(f"The backed-up configuration is {printable(str(directory / CONFIG))}. Move it where you need it.")
    if manifest.skipped:
        names = ", ".join(printable(name) for name in manifest.skipped[:_SKIPPED_SHOWN])
        missing = count(len(manifest.skipped), "file")
        print(f"The backup lacks {missing} that couldn't be read when it was made: {names}.")
    return EXIT_OK
