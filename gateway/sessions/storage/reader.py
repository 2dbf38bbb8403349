"""Opens connections that only read the database of the sessions. They need no lock, and no running gateway."""

import errno

from config import StorageEngine, StorageSettings
from gateway.database.postgres import PostgresConnection, ReconnectingPostgres, connection_options
from gateway.database.sqlite import SqliteReader
from gateway.sessions.storage.database import ReaderConnection


def open_reader(storage: StorageSettings) -> ReaderConnection:
    """Return a connection for one thread. Raises `OSError` if the file does not exist or cannot be opened."""
    if storage.engine is StorageEngine.SQLITE:
        if not storage.path.is_file():  # SQLite would create it.
            raise FileNotFoundError(errno.ENOENT, "The database does not exist yet", str(storage.path))
        return SqliteReader(storage.path)
    options = connection_options(storage)
    return ReconnectingPostgres(lambda: PostgresConnection(storage.url, **options))
