"""Opening the spool's file: private from birth, checked, migrated, and replaced when it is damaged."""

import contextlib
import os
import shutil
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from config.files import fsync_directory
from gateway.data_dir import unusable
from gateway.errors import CannotStart
from gateway.private_files import CREATE, FILE_MODE, open_private
from gateway.spool import schema
from gateway.spool.errors import Kind, kind_of, sentence

__all__ = ["LOG_LENGTH", "Opened", "copy", "lengthen_log", "log_of", "open_file"]

log: structlog.stdlib.BoundLogger = structlog.get_logger()


LOG_LENGTH = 8 * 1024 * 1024
_PLENTY = 16 * LOG_LENGTH
"""Free space below which the log is left to grow as it has to."""

_ALONE = "locking_mode = EXCLUSIVE"
"""A second process that opens the file is turned away. The index of the log is then kept in memory instead of in a
third file, which could not grow on a full disk."""

_AT_BIRTH = "auto_vacuum = INCREMENTAL"
_PRAGMAS = (
    "journal_mode = WAL",
    "synchronous = FULL",
    "temp_store = MEMORY",
    "secure_delete = FAST",
    # The writer does it by itself, after it has answered: SQLite would hide its errors.
    "wal_autocheckpoint = 0",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """`set_aside` is the damaged file that was there before."""

    connection: sqlite3.Connection
    set_aside: Path | None = None


class _Damaged(Exception):
    pass


def log_of(path: Path) -> Path:
    """Return SQLite's own write-ahead log of the file."""
    return path.with_name(f"{path.name}-wal")


def lengthen_log(path: Path) -> None:
    """Give the log of an open spool room beforehand, within which a commit takes half as long.

    A file that grows has to have its new length written down as well. SQLite goes by what is written in the log and not
    by its length, so what is behind that may be anything.
    """
    try:
        descriptor = os.open(log_of(path), os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        missing = LOG_LENGTH - os.fstat(descriptor).st_size
        if missing > 0 and shutil.disk_usage(path.parent).free > _PLENTY:
            os.pwrite(descriptor, bytes(missing), LOG_LENGTH - missing)
            os.fdatasync(descriptor)
    except OSError as trouble:  # It is only faster with it.
        log.debug("spool_log_not_lengthened", reason=str(trouble))
    finally:
        os.close(descriptor)


def open_file(path: Path) -> Opened:
    """Open or make the spool. `CannotStart` for what a restart cannot mend; a damaged file is set aside."""
    try:
        return Opened(connection=_open(path))
    except _Damaged as damage:
        reason = str(damage)
    target = _set_aside(path)
    log.error("spool_set_aside", file=str(target), reason=reason)
    return Opened(connection=_open(path), set_aside=target)


def copy(connection: sqlite3.Connection, path: Path) -> None:
    """Write what an open spool holds to a new file, which no log belongs to."""
    os.close(open_private(path, CREATE))
    try:
        connection.execute("VACUUM INTO ?", (str(path),))
    except sqlite3.Error:
        path.unlink(missing_ok=True)
        raise


def _open(path: Path) -> sqlite3.Connection:
    if log_of(path).exists() and not path.exists():
        # Somebody has removed the file, or a start was cut while it set both aside.
        raise _Damaged("its log is there, but not the file itself")
    try:
        _make_private(path)
        connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    except (OSError, sqlite3.Error) as trouble:
        raise unusable(path, str(trouble)) from trouble
    try:
        _prepare(connection, path)
    except BaseException:  # Nobody else knows the connection yet.
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    try:
        _check(connection)
        is_new = schema.version_of(connection) == 0
        for pragma in (_AT_BIRTH, *_PRAGMAS) if is_new else _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}").fetchall()
        _migrate(connection, path)
    except schema.Newer as newer:
        raise CannotStart(
            f"The spool {path} was written by a newer Gatehouse (its format is {newer}, this one knows "
            f"{len(schema.MIGRATIONS)}). Start the newer one, or move the file away; it was not changed."
        ) from newer
    except schema.NotOurs as foreign:
        raise _Damaged("it is a database, but not a spool") from foreign
    except sqlite3.Error as trouble:
        raise _translated(trouble, path) from trouble


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the tables of an older version up to date, after a copy of it was put beside it."""
    version = schema.version_of(connection)
    if 0 < version < len(schema.MIGRATIONS):
        kept = path.with_name(f"{path.name}.version-{version}")
        kept.unlink(missing_ok=True)  # Of a start that was cut before the migration.
        try:
            copy(connection, kept)
        except (OSError, sqlite3.Error) as trouble:
            raise CannotStart(
                f"The spool {path} has to be migrated, but no copy of it can be kept as {kept.name} ({trouble}). "
                "Make room for it; nothing was changed."
            ) from trouble
        log.info("spool_migrated", since=version, to=len(schema.MIGRATIONS), kept=str(kept))
    schema.migrate(connection)


def _check(connection: sqlite3.Connection) -> None:
    """Look whether the file is sound, before anything in it is changed."""
    connection.execute(f"PRAGMA {_ALONE}").fetchall()
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise _Damaged(verdict)


def _translated(trouble: sqlite3.Error, path: Path) -> Exception:
    match kind_of(trouble):
        case Kind.DAMAGED:
            return _Damaged(str(trouble))
        case Kind.TAKEN:
            return CannotStart(f"The spool {path} is in use by another process. Stop that one first.")
        case Kind.READ_ONLY:
            return unusable(path, str(trouble))
        case _:
            return sentence(trouble)


def _make_private(path: Path) -> None:
    """Create the file with mode 0600; SQLite gives the same mode to the files it makes beside it."""
    try:
        os.close(open_private(path, CREATE))
    except FileExistsError:
        for file in (path, log_of(path)):
            with contextlib.suppress(FileNotFoundError):
                file.chmod(FILE_MODE)
        return
    fsync_directory(path.parent)


def _set_aside(path: Path) -> Path:
    """Rename the file and what belongs to it, so that all can still be opened together under the new name."""
    target = path.with_name(f"{path.name}.corrupt-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}")
    # The file first: without its log it might look sound to the next start, and what the log held would be missing.
    for ending in ("", "-wal", "-shm", "-journal"):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + ending).rename(target.with_name(target.name + ending))
    fsync_directory(path.parent)
    return target
