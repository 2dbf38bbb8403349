"""`gatehouse backup`: all that the gateway keeps in one private file, made by the daemon if it runs, else by us."""

import argparse
import asyncio
import gzip
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from config import ConfigError, Loaded, LogFormat, LogLevel
from gateway.archive import closing
from gateway.backup import Backup
from gateway.cli.asking import parser
from gateway.cli.exits import EXIT_CONFIG, EXIT_FAILED, EXIT_OK, complain
from gateway.cli.sessions_archives import opened_stores, streamed
from gateway.cli.settings import load_settings
from gateway.cli.whole_files import replacing
from gateway.control import Control, NotRunning, is_running
from gateway.errors import CannotStart, Refused
from gateway.logs import configure, secrets_in
from gateway.text import printable

__all__ = ["main"]


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    options = _options(arguments, config)
    os.umask(0o077)
    try:
        # The file may name secrets of the daemon's environment, which this shell need not have.
        loaded = load_settings(options.config, resolves=False)
        configure(LogLevel.ERROR, LogFormat.CONSOLE, secrets_in(loaded.settings), sys.stderr)
        asyncio.run(_save(loaded, options))
    except (ConfigError, CannotStart) as refusal:
        return complain(refusal, EXIT_CONFIG)
    except (NotRunning, Refused) as refusal:
        return complain(refusal, EXIT_FAILED)
    print(_told(loaded, options))
    return EXIT_OK


def _options(arguments: Sequence[str], config: Path | None) -> argparse.Namespace:
    made = parser("backup", "Write sessions, spool, notes and files to one archive, while the gateway runs.", config)
    made.add_argument("file", type=Path, metavar="FILE", help="the archive to write, like backup.tar.gz")
    made.add_argument("--with-secrets", action="store_true", help="also the configuration file and the HTTP token")
    made.add_argument("--force", action="store_true", help="write over a file that is there")
    return made.parse_args(arguments)


async def _save(loaded: Loaded, options: argparse.Namespace) -> None:
    name = printable(str(options.file))
    async with _source(loaded, has_secrets=options.with_secrets) as blocks:
        try:
            with (
                replacing(options.file, overwrite=options.force) as file,
                gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0, compresslevel=6) as packed,
            ):
                async for block in blocks:
                    await asyncio.to_thread(packed.write, block)
        except FileExistsError as there:
            raise Refused(f"{name} exists already; choose another name, or add --force.") from there
        except OSError as trouble:
            raise Refused(f"{name} cannot be written: {trouble.strerror}.") from trouble


@asynccontextmanager
async def _source(loaded: Loaded, *, has_secrets: bool) -> AsyncIterator[AsyncIterator[bytes]]:
    """Open the way that is open: the daemon, or the files themselves under their lock."""
    settings = loaded.settings
    directory = settings.gateway.data_dir
    if await asyncio.to_thread(is_running, directory):
        async with Control(directory) as control:
            path = f"/backup?secrets={'yes' if has_secrets else 'no'}"
            async with closing(streamed(control, path)) as blocks:
                yield blocks
        return
    async with opened_stores(settings) as (sessions, spool):
        if spool is None:
            raise RuntimeError("The stores are opened with the spool, unless told otherwise.")
        backup = Backup(directory, spool=spool, sessions=sessions, now=_now, config=loaded.path)
        async with closing(backup.blocks(has_secrets=has_secrets)) as blocks:
            yield blocks


def _told(loaded: Loaded, options: argparse.Namespace) -> str:
    name = printable(str(options.file))
    size = options.file.stat().st_size / 1_000_000
    if options.with_secrets:
        return f"Wrote {name} ({size:.1f} MB), with the configuration and the secrets in it: keep it safe."
    written = f"Wrote {name} ({size:.1f} MB)."
    if loaded.path is None:
        return f"{written} The HTTP token is not in it; --with-secrets adds it."
    return f"{written} The configuration is not in it: {printable(str(loaded.path))}; --with-secrets adds it."


def _now() -> datetime:
    return datetime.now(UTC)
