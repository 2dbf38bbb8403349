"""The connection of a reader: it survives a restart of the server."""

from contextlib import closing

import pytest

from gateway.database.postgres import PostgresConnection, ReconnectingPostgres
from tests.postgres.fixtures import NewPostgres
from tests.postgres.server import PostgresServer


@pytest.fixture
def server(new_postgres: NewPostgres) -> PostgresServer:
    return new_postgres()


def reader_of(server: PostgresServer) -> ReconnectingPostgres:
    return ReconnectingPostgres(lambda: PostgresConnection(server.url()))


def test_a_restart_of_the_server_between_two_reads_is_not_noticed(server: PostgresServer) -> None:
    with closing(reader_of(server)) as reader:
        assert reader.execute("SELECT 1").fetchone() == (1,)
        server.restart()
        assert reader.execute("SELECT 2").fetchone() == (2,)


def test_a_read_fails_while_the_server_is_down_and_works_again_after_that(server: PostgresServer) -> None:
    with closing(reader_of(server)) as reader:
        reader.execute("SELECT 1")
        server.stop()
        for _ in range(2):
            with pytest.raises(BlockingIOError, match="can't be reached"):
                reader.execute("SELECT 2")
        server.start()
        assert reader.execute("SELECT 3").fetchone() == (3,)


def test_a_snapshot_is_not_replaced_by_another_moment(server: PostgresServer) -> None:
    with closing(reader_of(server)) as reader:
        reader.begin_snapshot()
        reader.execute("SELECT 1")
        server.restart()
        with pytest.raises(BlockingIOError, match="can't be reached"):
            reader.execute("SELECT 2")
