"""The storage engines that crash tests run with, and a new, empty storage of each."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.postgres.server import PostgresServer

ENGINES = ("files", "sqlite", "postgresql")
DATABASES = ("sqlite", "postgresql")
DATABASE_MODULES = ("alembic.command", "sqlalchemy.dialects.sqlite", "sqlalchemy.dialects.postgresql.psycopg")
"""Modules that a fork server imports for daemons with a database: each of them migrates an empty one."""

NewStorage = Callable[[Path], AbstractContextManager[str]]
"""Yields the URL of an empty storage for a daemon with that home folder. It is deleted afterwards."""


def new_storage(engine: str, postgres: Callable[[], PostgresServer]) -> NewStorage:
    """Return what creates storages of an engine. `postgres` starts the server, if that engine needs one."""

    @contextmanager
    def create(home: Path) -> Iterator[str]:
        match engine:
            case "files":
                yield "files:"
            case "sqlite":
                yield f"sqlite://{home}/data/gatehouse.db"
            case _:
                server = postgres()
                url = server.new_database()
                try:
                    yield url
                finally:
                    server.drop_database(url)

    return create
