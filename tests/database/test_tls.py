"""TLS to PostgreSQL, and the sentences for what prevents it. A restart of the server helps in none of these cases."""

import os
from pathlib import Path

import pytest

from config import StorageSettings
from gateway.database import migrate
from gateway.database.postgres import PostgresConnection
from gateway.errors import CannotStart
from gateway.spool.spool import Spool
from tests.certificate import write_certificate
from tests.postgres.fixtures import NewPostgres
from tests.postgres.server import PostgresServer


@pytest.fixture
def server(new_postgres: NewPostgres) -> PostgresServer:
    return new_postgres(tls=True)


def url_of(server: PostgresServer, options: str, host: str = "127.0.0.1") -> str:
    return f"postgresql://postgres@{host}:{server.port}/postgres?{options}"


async def test_a_verified_server_is_used(server: PostgresServer, tmp_path: Path) -> None:
    url = url_of(server, f"sslmode=verify-full&sslrootcert={server.certificate}")
    migrate.ensure_current(StorageSettings(url=url))
    with PostgresConnection(url) as connection:
        used = connection.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchone()
    assert used == (True,)
    async with await Spool.open_database(url, tmp_path) as spool:
        assert spool.trouble is None


async def test_a_server_that_cannot_be_verified_is_refused_with_advice(server: PostgresServer, tmp_path: Path) -> None:
    trusted = f"sslmode=verify-full&sslrootcert={server.certificate}"
    other, key = write_certificate(tmp_path)
    os.chmod(key, 0o644)  # noqa: PTH101 - no Path in async functions
    refused = {
        url_of(server, f"sslmode=verify-full&sslrootcert={other}"): "set sslrootcert",
        url_of(server, "sslmode=verify-full&sslrootcert=/nowhere.pem"): "set sslrootcert",
        url_of(server, trusted, host="localhost"): "a name of the server's certificate",
        url_of(server, "port=99999"): "Correct this value",
        url_of(server, "sslmode=strict"): "Correct this value",
        url_of(server, "sslmode=require&ssl_min_protocol_version=TLSv9"): "Correct this value",
        url_of(server, f"sslmode=require&sslcert={other}&sslkey=/nowhere.pem"): "Check sslcert and sslkey",
        url_of(server, f"sslmode=require&sslcert={other}&sslkey={key}"): "the mode of the key file",
    }
    for url, advice in refused.items():
        with pytest.raises(CannotStart, match=advice):
            migrate.ensure_current(StorageSettings(url=url))
        with pytest.raises(CannotStart, match=advice):
            await Spool.open_database(url, tmp_path)


def test_a_server_without_tls_is_refused_if_tls_is_wanted(new_postgres: NewPostgres) -> None:
    server = new_postgres(tls=True, ssl="off")
    with pytest.raises(CannotStart, match="Turn on TLS in the server, or change sslmode"):
        migrate.ensure_current(StorageSettings(url=url_of(server, "sslmode=require")))
