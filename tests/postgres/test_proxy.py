import asyncio

import psycopg
import pytest

from tests.postgres.fixtures import NewProxy
from tests.postgres.server import PostgresServer

COUNT = "SELECT count(*) FROM notes"


@pytest.fixture
def table_url(postgres: PostgresServer, database_url: str) -> str:
    postgres.execute("CREATE TABLE notes (text text)", database=database_url)
    return database_url


@pytest.mark.parametrize(("moment", "rows"), [("cut_before", 0), ("cut_after", 1)])
def test_a_cut_at_the_commit_hides_whether_it_happened(
    postgres: PostgresServer, table_url: str, new_proxy: NewProxy, moment: str, rows: int
) -> None:
    proxy = new_proxy(table_url)
    with psycopg.connect(proxy.url) as connection:
        connection.execute("INSERT INTO notes VALUES ('first')")
        getattr(proxy, moment)(b"COMMIT")
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
    assert proxy.was_cut.wait(60)
    assert postgres.execute(COUNT, database=table_url) == [(rows,)]
    with psycopg.connect(proxy.url) as connection:
        connection.execute("INSERT INTO notes VALUES ('second')")
    assert postgres.execute(COUNT, database=table_url) == [(rows + 1,)]


async def test_all_connections_are_cut_while_they_wait_for_an_answer(database_url: str, new_proxy: NewProxy) -> None:
    proxy = new_proxy(database_url)
    async with (
        await psycopg.AsyncConnection.connect(proxy.url, autocommit=True) as idle,
        await psycopg.AsyncConnection.connect(proxy.url, autocommit=True) as busy,
    ):
        proxy.cut_after(b"answer")
        with pytest.raises(psycopg.OperationalError):
            await busy.execute("SELECT 'answer'")
        with pytest.raises(psycopg.OperationalError):
            await idle.execute("SELECT 1")


def test_a_match_in_an_earlier_message_is_too_late(database_url: str, new_proxy: NewProxy) -> None:
    proxy = new_proxy(database_url)
    with psycopg.connect(proxy.url, autocommit=True) as connection:
        connection.execute("SELECT 'match'")
        proxy.cut_before(b"match")
        connection.execute("SELECT 1")
        assert not proxy.was_cut.is_set()
        proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


async def test_a_stalled_connection_goes_on_when_it_is_resumed(database_url: str, new_proxy: NewProxy) -> None:
    proxy = new_proxy(database_url)
    async with await psycopg.AsyncConnection.connect(proxy.url) as connection, asyncio.TaskGroup() as group:
        proxy.stall()
        query = group.create_task(connection.execute("SELECT 1"))
        with pytest.raises(psycopg.errors.ConnectionTimeout):
            await psycopg.AsyncConnection.connect(proxy.url, connect_timeout=2)
        assert not query.done()
        proxy.resume()
        assert await (await query).fetchone() == (1,)


async def test_a_stalled_connection_can_be_cut(database_url: str, new_proxy: NewProxy) -> None:
    proxy = new_proxy(database_url)
    async with await psycopg.AsyncConnection.connect(proxy.url) as connection:
        proxy.stall()
        proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            await connection.execute("SELECT 1")


def test_refused_clients_can_connect_later(database_url: str, new_proxy: NewProxy) -> None:
    proxy = new_proxy(database_url)
    with psycopg.connect(proxy.url, autocommit=True) as connection:
        proxy.refuse()
        with pytest.raises(psycopg.OperationalError, match="Is the server running"):
            psycopg.connect(proxy.url)
        assert connection.execute("SELECT 1").fetchone() == (1,)
    proxy.accept()
    psycopg.connect(proxy.url).close()


def test_without_a_server_the_connection_is_closed(postgres: PostgresServer, new_proxy: NewProxy) -> None:
    proxy = new_proxy(postgres.url().replace(str(postgres.socket_folder), "/nowhere"))
    with pytest.raises(psycopg.OperationalError, match="closed the connection unexpectedly"):
        psycopg.connect(proxy.url)
