from contextlib import ExitStack

import psycopg
import pytest

from tests.postgres.fixtures import NewPgBouncer
from tests.postgres.server import PostgresServer

BACKEND = "SELECT pg_backend_pid()"


def test_more_clients_than_connections_take_turns(
    postgres: PostgresServer, database_url: str, new_pgbouncer: NewPgBouncer
) -> None:
    pool = new_pgbouncer(postgres, pool_size=1)
    with ExitStack() as stack:
        clients = [
            stack.enter_context(psycopg.connect(pool.url(database_url), autocommit=True, prepare_threshold=None))
            for _ in range(3)
        ]
        assert len({client.execute(BACKEND).fetchone() for client in clients}) == 1


def test_settings_of_a_session_reach_other_clients(
    postgres: PostgresServer, database_url: str, new_pgbouncer: NewPgBouncer
) -> None:
    """This is what transaction pooling takes away: code that relies on a session fails here."""
    url = new_pgbouncer(postgres, pool_size=1).url(database_url)
    with psycopg.connect(url, autocommit=True) as first, psycopg.connect(url, autocommit=True) as second:
        first.execute("SET statement_timeout = '7s'")
        assert second.execute("SHOW statement_timeout").fetchone() == ("7s",)


def test_clients_lose_their_connections_when_it_is_killed(
    postgres: PostgresServer, database_url: str, new_pgbouncer: NewPgBouncer
) -> None:
    pool = new_pgbouncer(postgres)
    with psycopg.connect(pool.url(database_url)) as client:
        pool.kill()
        with pytest.raises(psycopg.OperationalError):
            client.execute("SELECT 1")
    pool.start()
    with psycopg.connect(pool.url(database_url)) as client:
        assert client.execute("SELECT 1").fetchone() == (1,)
