"""The SQLite file of a database engine: created private, opened for the writer, and opened for reading."""

import errno
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from config.files import make_private_directory
from gateway.data_dir import unusable
from gateway.database.connection import Parameters
from gateway.private_files import CREATE, FILE_MODE, open_private, require_file

_TIMEOUT = 5.0
"""Seconds to wait while a person who has opened the file holds a lock."""

_WRITER_PRAGMAS = (
    "synchronous = FULL",  # Each commit is fsynced.
    "foreign_keys = ON",
    "temp_store = MEMORY",
    "secure_delete = FAST",
    "wal_autocheckpoint = 0",  # The writer runs checkpoints after it has answered its callers.
)


def create_file(path: Path) -> None:
    """Create the file with the settings that have to be there before its first table. Blocks.

    Raises `CannotStart` if it cannot be used.
    """
    try:
        make_private_directory(path.parent)
        for each in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
            require_file(each)  # SQLite would follow a link, and might wait for a pipe.
        try:
            os.close(open_private(path, CREATE))
        except FileExistsError:
            path.chmod(FILE_MODE)
        with closing(_connect(path)) as connection:
            if connection.execute("PRAGMA page_count").fetchone() == (0,):
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL").fetchall()
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
    except (OSError, sqlite3.Error) as error:
        raise unusable(path, error) from error


def open_writer(path: Path) -> sqlite3.Connection:
    """Open the file for the one thread that writes to it. Raises `CannotStart` if it cannot be used."""
    try:
        connection = _connect(path)
        for pragma in _WRITER_PRAGMAS:
            connection.execute(f"PRAGMA {pragma}").fetchall()
    except sqlite3.Error as error:
        raise unusable(path, error) from error
    return connection


class SqliteReader:
    """A connection for the queries of one thread. Any thread may close it."""

    def __init__(self, path: Path) -> None:
        self._connection = _connect(path)
        self._connection.execute("PRAGMA query_only = ON").fetchall()

    def execute(self, sql: str, parameters: Parameters = (), /) -> sqlite3.Cursor:
        try:
            return self._connection.execute(sql, parameters)
        except sqlite3.Error as error:
            raise OSError(errno.EIO, f"The database can't be read: {error}") from error

    def begin_snapshot(self) -> None:
        """Let all later queries see the same moment, until the connection is closed. The writer is not held up."""
        self.execute("BEGIN")
        self.execute("SELECT count(*) FROM sqlite_master").fetchone()  # The first read chooses the moment.

    def close(self) -> None:
        self._connection.close()


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=_TIMEOUT, isolation_level=None, check_same_thread=False)
