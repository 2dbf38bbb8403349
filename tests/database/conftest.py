from collections.abc import Iterator
from pathlib import Path

import pytest

from config import StorageSettings
from tests.postgres.fixtures import PostgresServers


@pytest.fixture(params=["sqlite", "system", "embedded"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StorageSettings]:
    """Run the test with an empty database: SQLite, PostgreSQL of this system, PostgreSQL 18."""
    if request.param == "sqlite":
        yield StorageSettings(url=f"sqlite:{tmp_path}/gatehouse.db")
        return
    servers: PostgresServers = request.getfixturevalue("postgres_servers")
    server = servers.shared(request.param)
    url = server.new_database()
    yield StorageSettings(url=url)
    server.drop_database(url)
