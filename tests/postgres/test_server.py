import asyncio
import os

import psycopg
import pytest

from tests.postgres.fixtures import NewPostgres
from tests.postgres.server import PostgresServer, StopMode


def test_each_test_has_an_empty_database_that_sorts_text_by_language(
    each_postgres: PostgresServer, each_database_url: str
) -> None:
    tables = "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'"
    assert each_postgres.execute(tables, database=each_database_url) == [(0,)]
    order = "SELECT string_agg(letter, '' ORDER BY letter) FROM unnest(%s::text[]) letter"
    assert each_postgres.execute(order, [["B", "a", "A"]], database=each_database_url) == [("aAB",)]
    assert each_postgres.execute("SHOW server_version_num")[0][0].startswith(str(each_postgres.version))
    assert each_postgres.execute("SHOW fsync") == [("on",)]


def test_committed_rows_survive_a_kill_and_others_do_not(new_postgres: NewPostgres) -> None:
    server = new_postgres()
    url = server.new_database()
    server.execute("CREATE TABLE notes (text text)", database=url)
    server.execute("INSERT INTO notes VALUES ('kept')", database=url)
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO notes VALUES ('lost')")
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
    with pytest.raises(psycopg.OperationalError):
        server.execute("SELECT 1")
    server.start()
    assert server.execute("SELECT text FROM notes", database=url) == [("kept",)]
    assert "was interrupted" in server.log


@pytest.mark.parametrize("mode", ["smart", "fast", "immediate"])
def test_a_stopped_server_starts_again(new_postgres: NewPostgres, mode: StopMode) -> None:
    server = new_postgres(max_connections="7")
    url = server.new_database()
    server.stop(mode)
    server.start()
    server.restart()
    assert server.execute("SHOW max_connections", database=url) == [("7",)]


def test_the_files_of_a_server_can_be_on_disk(new_postgres: NewPostgres) -> None:
    server = new_postgres(on_disk=True)
    assert server.execute("SHOW data_directory") == [(f"{server.socket_folder}/data",)]
    assert server.socket_folder.is_relative_to("/tmp")  # noqa: S108 - it is a new folder there


async def test_a_paused_server_answers_when_it_is_resumed(new_postgres: NewPostgres) -> None:
    server = new_postgres()
    async with await psycopg.AsyncConnection.connect(server.url()) as connection, asyncio.TaskGroup() as group:
        server.pause()
        query = group.create_task(connection.execute("SELECT 1"))
        with pytest.raises(psycopg.errors.ConnectionTimeout):
            await psycopg.AsyncConnection.connect(server.url(), connect_timeout=2)
        assert not query.done()
        server.resume()
        assert await (await query).fetchone() == (1,)


def test_a_paused_server_can_be_killed(new_postgres: NewPostgres) -> None:
    server = new_postgres()
    server.pause()
    server.kill()
    server.start()
    assert server.execute("SELECT 1") == [(1,)]


@pytest.mark.parametrize("mask", [0o002, 0o022, 0o077])
def test_a_server_starts_with_any_umask(new_postgres: NewPostgres, mask: int) -> None:
    before = os.umask(mask)
    try:
        server = new_postgres()
        assert server.execute("SELECT 1") == [(1,)]
    finally:
        os.umask(before)
