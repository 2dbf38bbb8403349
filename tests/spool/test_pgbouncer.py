"""The spool behind PgBouncer, which gives it another session of the server for each transaction."""

import asyncio
from functools import partial
from pathlib import Path

import psycopg
import pytest

from gateway.database.postgres import PostgresConnection
from gateway.errors import CannotStart
from gateway.spool import Duplicate, SetFact, Spool, SpoolUnavailable
from tests.polling import until
from tests.postgres.fixtures import NewPgBouncer, NewPostgres
from tests.postgres.pgbouncer import PgBouncer
from tests.postgres.server import PostgresServer
from tests.spool.postgres_tables import create_tables
from tests.spool.samples import accept, send, take


async def test_batches_and_refusals_work(
    tables_url: str, postgres: PostgresServer, new_pgbouncer: NewPgBouncer, tmp_path: Path
) -> None:
    url = new_pgbouncer(postgres).url(tables_url)
    async with asyncio.timeout(60), await Spool.open_database(url, tmp_path) as spool:
        async with asyncio.TaskGroup() as group:
            for number in range(300):
                call = spool.commit(take(f"e{number}"), accept(f"t{number}"), send(f"k{number}"))
                group.create_task(call, name=f"commit:{number}")
        with pytest.raises(Duplicate):
            await spool.commit(take("e7"))
        assert [row.turn for row in (await spool.recover()).inbox] == [f"t{number}" for number in range(300)]


def test_transactions_have_their_timeouts(
    tables_url: str, postgres: PostgresServer, new_pgbouncer: NewPgBouncer
) -> None:
    url = new_pgbouncer(postgres).url(tables_url)
    with PostgresConnection(url, lock_timeout=1.234, statement_timeout=4.321) as connection:
        connection.begin()
        assert connection.execute("SHOW lock_timeout").fetchone() == ("1234ms",)
        assert connection.execute("SHOW statement_timeout").fetchone() == ("4321ms",)
        connection.commit()


async def test_a_killed_server_or_pool_refuses_commits_until_it_is_back(
    new_postgres: NewPostgres, new_pgbouncer: NewPgBouncer, tmp_path: Path
) -> None:
    server = new_postgres()
    bouncer = new_pgbouncer(server)
    url = server.new_database()
    create_tables(url)
    # While the server is away, PgBouncer keeps its clients waiting.
    open_spool = partial(Spool.open_database, bouncer.url(url), tmp_path, statement_timeout=0.5)
    async with asyncio.timeout(120), await open_spool() as spool:
        parts: tuple[PostgresServer | PgBouncer, ...] = (server, bouncer)
        for number, part in enumerate(parts):
            await asyncio.to_thread(part.kill)
            with pytest.raises(SpoolUnavailable, match="can't be reached"):
                await spool.commit(SetFact(name="lost", value=str(number)))
            await asyncio.to_thread(part.start)
            await until(lambda: spool.trouble is None)
            await spool.commit(SetFact(name="stored", value=str(number)))
        assert await spool.facts() == {"stored": "1"}


async def test_a_second_gateway_is_refused(
    tables_url: str, postgres: PostgresServer, new_pgbouncer: NewPgBouncer, tmp_path: Path
) -> None:
    url = new_pgbouncer(postgres).url(tables_url)
    async with await Spool.open_database(url, tmp_path):
        with pytest.raises(CannotStart, match="in use by another gateway"):
            await Spool.open_database(tables_url, tmp_path)
    with psycopg.connect(tables_url) as connection:
        assert connection.execute("SELECT boot FROM writer").fetchone() == ("",), "freed when it was closed"
