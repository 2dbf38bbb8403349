"""The spool with two PostgreSQL servers: the primary dies, and its standby is promoted."""

import asyncio
from pathlib import Path

import pytest

from config import StorageSettings
from gateway.database import migrate
from gateway.spool import SetFact, Spool, SpoolBroken, retry_while_unavailable
from tests.polling import until
from tests.postgres.fixtures import NewPostgres
from tests.postgres.server import PostgresServer, url_of_both
from tests.spool.postgres_tables import create_tables

TIMEOUT = 120


def stored(server: PostgresServer, url: str) -> dict[str, str]:
    name = url.partition("///")[2].partition("?")[0]
    return dict(server.execute("SELECT name, value FROM facts ORDER BY name", database=name))


async def store(spool: Spool, name: str) -> None:
    await spool.commit(SetFact(name=name, value="1"))


async def test_a_gateway_goes_on_at_a_standby_that_has_every_commit(new_postgres: NewPostgres, tmp_path: Path) -> None:
    primary = new_postgres()
    url = primary.new_database()
    create_tables(url)
    standby = new_postgres(primary=primary)
    assert migrate.current(StorageSettings.model_validate({"url": url_of_both(url, standby)})) == migrate.HEAD
    primary.configure("synchronous_standby_names", "*")
    async with asyncio.timeout(TIMEOUT), await Spool.open_database(url_of_both(url, standby), tmp_path) as spool:
        await store(spool, "before")
        await asyncio.to_thread(primary.kill)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(
                retry_while_unavailable(lambda: store(spool, "after"), sleep=lambda _: asyncio.sleep(0.05)),
                name="store",
            )
            await until(lambda: spool.trouble is not None)
            assert not waiting.done()
            await asyncio.to_thread(standby.promote)
        assert spool.trouble is None
    assert stored(standby, url) == {"after": "1", "before": "1"}


@pytest.mark.parametrize("is_idle", [True, False])
async def test_a_standby_that_lacks_commits_breaks_the_spool(
    new_postgres: NewPostgres, tmp_path: Path, *, is_idle: bool
) -> None:
    """The sessions in memory are newer than the stored ones. So the daemon has to start again."""
    primary = new_postgres()
    url = primary.new_database()
    create_tables(url)
    standby = new_postgres(primary=primary)
    async with asyncio.timeout(TIMEOUT):
        spool = await Spool.open_database(url_of_both(url, standby), tmp_path)
        await store(spool, "replicated")
        await until(lambda: stored(standby, url) == {"replicated": "1"})
        await asyncio.to_thread(standby.stop)
        await store(spool, "lost")
        await asyncio.to_thread(primary.kill)
        await asyncio.to_thread(standby.start)
        await asyncio.to_thread(standby.promote)
        if not is_idle:
            with pytest.raises(SpoolBroken, match="has lost messages that were stored"):
                await retry_while_unavailable(lambda: store(spool, "later"), sleep=lambda _: asyncio.sleep(0.05))
        await spool.broken.wait()
        assert "has lost messages that were stored" in str(spool.trouble)
        await spool.close()
    assert stored(standby, url) == {"replicated": "1"}
