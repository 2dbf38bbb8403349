"""Notifications of the database, which no pool may be in between of."""

import asyncio

import psycopg
import pytest
from pydantic import ValidationError

from config import Settings
from gateway.cluster.listener import Listener
from gateway.cluster.membership import CHANNEL
from tests.postgres.fixtures import NewPgBouncer
from tests.postgres.server import PostgresServer

TIMEOUT = 60.0


async def test_notifications_come_past_a_pool(
    database_url: str, postgres: PostgresServer, new_pgbouncer: NewPgBouncer
) -> None:
    pooled = new_pgbouncer(postgres).url(database_url)
    settings = Settings.model_validate({"storage": {"url": pooled}, "cluster": {"listen_url": database_url}})
    heard = asyncio.Queue[str]()
    listener = Listener(settings, heard.put_nowait)
    listener.start()
    try:
        async with asyncio.timeout(TIMEOUT):
            assert await heard.get() == "", "it is connected"
            await asyncio.to_thread(notify, pooled, "arrival 7")
            assert await heard.get() == "arrival 7"
    finally:
        listener.stop()


def notify(url: str, payload: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, payload))


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("postgresql://gatehouse:hunter2@db/gatehouse", "must not contain a password"),
        ("http://db/gatehouse", "must start with postgresql:"),
        ("postgresql://db", "names no database"),
    ],
)
def test_an_unusable_url_is_refused(url: str, problem: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Settings.model_validate({"cluster": {"listen_url": url}})
    assert problem in str(refused.value)
