"""Opens `spool.db`: private from its creation, checked, migrated, and replaced if it is damaged."""

import contextlib
import os
import shutil
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import structlog

from config.files import fsync_directory
from gateway.data_dir import unusable
from gateway.database.connection import Connection
from gateway.errors import CannotStart
from gateway.private_files import CREATE, FILE_MODE, open_private, require_file
from gateway.spool import schema
from gateway.spool.errors import Cause, as_spool_error, cause_of

log: structlog.stdlib.BoundLogger = structlog.get_logger()

WAL_SIZE = 8 * 1024 * 1024
"""The preallocated size of SQLite's write-ahead log."""

_MIN_FREE_SPACE = 16 * WAL_SIZE
"""With less free space, the WAL grows as needed."""

_PRAGMAS = (
    "journal_mode = WAL",
    "synchronous = FULL",  # Each commit is fsynced. NORMAL would lose the last commits in a power cut.
    "temp_store = MEMORY",
    "secure_delete = FAST",  # Deleted messages are overwritten where that needs no extra write.
    # The writer runs checkpoints after it has answered its callers. An automatic one would hide its errors.
    "wal_autocheckpoint = 0",
)


_ENDINGS = ("", "-wal", "-shm", "-journal")
"""The files that SQLite keeps for one database."""


class _Damaged(Exception):
    pass


def wal_path(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def preallocate_wal(path: Path) -> None:
    """Extend the WAL of an open spool. A commit takes half as long if it does not change the file's length.

    SQLite reads the WAL by its frame headers and ignores the bytes behind the last frame.
    """
    try:
        descriptor = open_private(wal_path(path), os.O_WRONLY)
    except OSError:
        return
    try:
        missing = WAL_SIZE - os.fstat(descriptor).st_size
        if missing > 0 and shutil.disk_usage(path.parent).free > _MIN_FREE_SPACE:
            os.pwrite(descriptor, bytes(missing), WAL_SIZE - missing)
            os.fdatasync(descriptor)
    except OSError as error:  # Commits are slower without it, and nothing else.
        log.debug("wal_preallocation_failed", reason=str(error))
    finally:
        os.close(descriptor)


def open_database(path: Path) -> tuple[sqlite3.Connection, Path | None]:
    """Open or create the spool. A damaged file is renamed, and its new path returned with the connection.

    Raises `CannotStart` for errors that a restart cannot fix.
    """
    try:
        return _open(path), None
    except _Damaged as damage:
        reason = str(damage)
    target = path.with_name(f"{path.name}.corrupt-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}")
    # SQLite finds the WAL by its name, so all files get the new name. The database goes first: left behind without
    # its WAL, it might look sound to the next start, which would then miss the content of the WAL.
    for ending in _ENDINGS:
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + ending).rename(target.with_name(target.name + ending))
    fsync_directory(path.parent)
    log.error("spool_set_aside", file=str(target), reason=reason)
    return _open(path, lost="damaged"), target


def copy_database(path: Path, connection: Connection) -> None:
    """Write the content of an open spool to a new private file without a WAL."""
    os.close(open_private(path, CREATE))
    try:
        connection.execute("VACUUM INTO ?", (str(path),))
    except sqlite3.Error:
        path.unlink(missing_ok=True)
        raise


def _open(path: Path, lost: str = "missing") -> sqlite3.Connection:
    """Open or create the file. `lost` says what happened to an earlier one, if there was one."""
    files = [path.with_name(path.name + ending) for ending in _ENDINGS]
    try:
        for file in files:  # SQLite would follow a link, and might wait for a pipe.
            require_file(file)
    except OSError as error:
        raise unusable(path, error) from error
    if wal_path(path).exists() and not path.exists():
        # Either a person has deleted the file, or an earlier start was cut while it renamed both.
        raise _Damaged("its write-ahead log exists, but not the file itself")
    try:
        # SQLite gives the mode of this file to the files it creates beside it.
        try:
            os.close(open_private(path, CREATE))
        except FileExistsError:
            lost = "empty"  # If it is a new database at all.
            for file in (path, wal_path(path)):
                with contextlib.suppress(FileNotFoundError):
                    file.chmod(FILE_MODE)
        else:
            fsync_directory(path.parent)
        connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    except (OSError, sqlite3.Error) as error:
        raise unusable(path, error) from error
    try:
        _prepare(connection, path, lost)
    except BaseException:  # The caller does not have the connection yet, so it cannot close it.
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, lost: str) -> None:
    """Check the file before anything in it is changed, then migrate it."""
    try:
        # Exclusive mode keeps other processes out. It also keeps the WAL index in memory instead of in a third file,
        # which could not grow on a full disk.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise _Damaged(verdict)
        version = schema.version_of(connection)
        if version == 0:  # A new file. This pragma has no effect later.
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL").fetchall()
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}").fetchall()
        if 0 < version < len(schema.MIGRATIONS):
            _keep_copy(connection, path, version)
        # Each gateway that has sessions also had a spool.
        is_lost = version == 0 and any((path.parent / "sessions" / "transcripts").glob("*.jsonl"))
        schema.migrate(connection, lost=lost if is_lost else None)
        if is_lost:
            log.error("spool_replaced", file=str(path), reason=lost)
    except schema.Newer as newer:
        raise CannotStart(
            f"The spool {path} was written by a newer Gatehouse (its format is {newer}, this version knows "
            f"{len(schema.MIGRATIONS)}). Start the newer version, or move the file away. It was not changed."
        ) from newer
    except schema.NotOurs as foreign:
        raise _Damaged("it is a database, but not a spool") from foreign
    except sqlite3.Error as error:
        match cause_of(error):
            case Cause.DAMAGED:
                raise _Damaged(str(error)) from error
            case Cause.LOCKED:
                raise CannotStart(f"The spool {path} is in use by another process. Stop that one first.") from error
            case Cause.READ_ONLY:
                raise unusable(path, error) from error
            case _:
                raise as_spool_error(error) from error


def _keep_copy(connection: sqlite3.Connection, path: Path, version: int) -> None:
    """Copy a file of an older version before its migration."""
    kept = path.with_name(f"{path.name}.version-{version}")
    try:
        kept.unlink(missing_ok=True)  # Left by a start that was cut before the migration.
        copy_database(kept, connection)
    except (OSError, sqlite3.Error) as error:
        raise CannotStart(
            f"The spool {path} has to be migrated, but a copy of it can't be kept as {kept.name} ({error}). "
            "Make room for it. Nothing was changed."
        ) from error
    log.info("spool_migrated", since=version, to=len(schema.MIGRATIONS), kept=str(kept))
