"""The spool on a PostgreSQL server that fails, and on connections that are cut at the worst moment."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psycopg
import pytest
from structlog.testing import capture_logs

from gateway.database import lease
from gateway.database.lease import Holder
from gateway.errors import CannotStart
from gateway.spool import (
    Duplicate,
    SetFact,
    Spool,
    SpoolBroken,
    SpoolUnavailable,
    postgres_writer,
    retry_while_unavailable,
)
from tests.polling import until
from tests.postgres.fixtures import NewPostgres, NewProxy
from tests.postgres.server import PostgresServer
from tests.spool.postgres_tables import create_tables
from tests.spool.samples import accept, send, take

FIRST, SECOND = (take("e1"), accept("t1"), send("k1")), (take("e2"), accept("t2"), send("k2"))


@pytest.fixture
def server(new_postgres: NewPostgres) -> PostgresServer:
    """Return a server of this test alone."""
    return new_postgres()


@pytest.fixture
def server_url(server: PostgresServer) -> str:
    url = server.new_database()
    create_tables(url)
    return url


async def turns(spool: Spool) -> list[str]:
    return [row.turn for row in (await spool.recover()).inbox]


async def refused_until_stored(spool: Spool, value: str) -> None:
    await retry_while_unavailable(
        lambda: spool.commit(SetFact(name="last", value=value)), sleep=lambda _: asyncio.sleep(0.05)
    )


async def test_a_commit_whose_answer_was_cut_off_is_stored_once(
    tables_url: str, new_proxy: NewProxy, tmp_path: Path
) -> None:
    proxy = new_proxy(tables_url)
    async with asyncio.timeout(60), await Spool.open_database(proxy.url, tmp_path) as spool:
        await spool.commit(*FIRST)
        proxy.cut_after(b"COMMIT")
        with capture_logs() as logs:
            await spool.commit(*SECOND)
        assert proxy.was_cut.is_set()
        known = [line for line in logs if line["event"] == "commit_outcome_known"]
        assert [line["is_stored"] for line in known] == [True]
        assert await turns(spool) == ["t1", "t2"]
        with pytest.raises(Duplicate):
            await spool.commit(*SECOND)
        assert spool.trouble is None


async def test_a_commit_that_was_cut_off_before_it_arrived_is_repeated(
    tables_url: str, new_proxy: NewProxy, tmp_path: Path
) -> None:
    proxy = new_proxy(tables_url)
    async with asyncio.timeout(60), await Spool.open_database(proxy.url, tmp_path) as spool:
        proxy.cut_before(b"COMMIT")
        with capture_logs() as logs:
            await spool.commit(*FIRST)
        known = [line for line in logs if line["event"] == "commit_outcome_known"]
        assert [line["is_stored"] for line in known] == [False]
        assert await turns(spool) == ["t1"]


@pytest.mark.parametrize("moment", ["cut_before", "cut_after"])
async def test_a_batch_that_was_cut_off_before_its_commit_is_repeated(
    tables_url: str, new_proxy: NewProxy, tmp_path: Path, moment: str
) -> None:
    proxy = new_proxy(tables_url)
    async with asyncio.timeout(60), await Spool.open_database(proxy.url, tmp_path) as spool:
        getattr(proxy, moment)(b"INSERT INTO outbox")
        await spool.commit(*FIRST)
        assert proxy.was_cut.is_set()
        assert await turns(spool) == ["t1"]


async def test_a_commit_of_unknown_outcome_waits_while_others_are_refused(
    tables_url: str, new_proxy: NewProxy, tmp_path: Path
) -> None:
    proxy = new_proxy(tables_url)
    async with asyncio.timeout(60), await Spool.open_database(proxy.url, tmp_path) as spool:
        proxy.refuse()
        proxy.cut_after(b"COMMIT")
        async with asyncio.TaskGroup() as group:
            unknown = group.create_task(spool.commit(*FIRST), name="unknown")
            await until(lambda: spool.trouble is not None)
            with pytest.raises(SpoolUnavailable, match="can't be reached"):
                await spool.commit(*SECOND)
            assert not unknown.done()
            proxy.accept()
        assert await turns(spool) == ["t1"]


async def test_closing_does_not_guess_an_unknown_outcome(tables_url: str, new_proxy: NewProxy, tmp_path: Path) -> None:
    proxy = new_proxy(tables_url)
    spool = await Spool.open_database(proxy.url, tmp_path)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        proxy.refuse()
        proxy.cut_after(b"COMMIT")
        unknown = group.create_task(_outcome(spool), name="unknown")
        await until(lambda: spool.trouble is not None)
        await spool.close()
    assert isinstance(unknown.result(), SpoolBroken)
    assert spool.broken.is_set()


async def _outcome(spool: Spool) -> BaseException | None:
    try:
        await spool.commit(*FIRST)
    except (SpoolBroken, SpoolUnavailable) as error:
        return error
    return None


async def test_a_restart_of_the_server_is_not_noticed_between_commits(
    server: PostgresServer, server_url: str, tmp_path: Path
) -> None:
    async with asyncio.timeout(60), await Spool.open_database(server_url, tmp_path) as spool:
        await spool.commit(*FIRST)
        await asyncio.to_thread(server.restart)
        await spool.commit(*SECOND)
        assert await turns(spool) == ["t1", "t2"]


async def test_a_killed_server_refuses_commits_until_it_is_back(
    server: PostgresServer, server_url: str, tmp_path: Path
) -> None:
    async with asyncio.timeout(60), await Spool.open_database(server_url, tmp_path) as spool:
        await spool.commit(*FIRST)
        await asyncio.to_thread(server.kill)
        with capture_logs() as logs:
            with pytest.raises(SpoolUnavailable, match="can't be reached"):
                await spool.commit(*SECOND)
            assert spool.trouble is not None
            with pytest.raises(SpoolUnavailable):
                await spool.recover()
            await asyncio.to_thread(server.start)
            await until(lambda: spool.trouble is None)
        assert [line["event"] for line in logs if line["log_level"] != "debug"] == [
            "spool_write_failed",
            "spool_writable_again",
        ]
        assert await turns(spool) == ["t1"]
        await spool.commit(*SECOND)


async def test_nothing_acknowledged_is_lost_while_the_server_is_killed_again_and_again(
    server: PostgresServer, server_url: str, tmp_path: Path
) -> None:
    acknowledged: set[str] = set()
    refused: set[str] = set()
    is_over = asyncio.Event()

    async def commit(spool: Spool, lane: int) -> None:
        number = 0
        while not is_over.is_set():
            name, number = f"{lane}-{number}", number + 1
            try:
                await spool.commit(take(name), accept(name), send(name))
            except SpoolUnavailable:
                refused.add(name)
                await asyncio.sleep(0.02)
            else:
                acknowledged.add(name)

    async with asyncio.timeout(120), await Spool.open_database(server_url, tmp_path) as spool:
        async with asyncio.TaskGroup() as group:
            for lane in range(10):
                group.create_task(commit(spool, lane), name=f"lane:{lane}")
            for _ in range(3):
                before = len(acknowledged)
                await until(lambda before=before: len(acknowledged) > before + 50)  # type: ignore[misc]  # mypy cannot infer its type.
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            await until(lambda: spool.trouble is None)
            is_over.set()
        stored = await turns(spool)
    assert len(stored) == len(set(stored))
    assert set(stored) == acknowledged
    assert not acknowledged & refused


@contextmanager
def blocker(url: str, statement: str) -> Iterator[psycopg.Connection]:
    """Hold the locks of a statement, as a person in psql may do."""
    with psycopg.connect(url) as connection:
        connection.execute(statement.encode())
        yield connection
        connection.rollback()


async def test_a_lock_that_is_held_too_long_refuses_the_commit(tables_url: str, tmp_path: Path) -> None:
    async with asyncio.timeout(60), await Spool.open_database(tables_url, tmp_path, lock_timeout=0.2) as spool:
        with blocker(tables_url, "LOCK TABLE outbox"), pytest.raises(SpoolUnavailable, match="locked"):
            await spool.commit(*FIRST)
        await spool.commit(*FIRST)
        assert spool.trouble is None


async def test_an_idle_gateway_notices_that_a_lock_was_released(
    tables_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease.SingleLease, "seconds", 0.8)
    async with asyncio.timeout(60), await Spool.open_database(tables_url, tmp_path, lock_timeout=0.2) as spool:
        with blocker(tables_url, "LOCK TABLE outbox, writer"):
            with pytest.raises(SpoolUnavailable, match="locked"):
                await spool.commit(*FIRST)
            assert spool.trouble is not None
        await until(lambda: spool.trouble is None)


RECORD_RENEWALS = """
CREATE TABLE renewal (at timestamptz);
CREATE FUNCTION record() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO renewal VALUES (now()); RETURN NULL; END $$;
CREATE TRIGGER renewed AFTER UPDATE ON writer FOR EACH STATEMENT EXECUTE FUNCTION record()
"""
"""Batches that are rolled back leave no row."""


async def test_the_lease_is_renewed_between_batches_that_wait_for_a_lock(
    tables_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres: PostgresServer
) -> None:
    monkeypatch.setattr(lease.SingleLease, "seconds", 0.4)
    monkeypatch.setattr(postgres_writer, "MAX_BATCH", 1)
    postgres.execute(RECORD_RENEWALS, database=tables_url)
    async with asyncio.timeout(60), await Spool.open_database(tables_url, tmp_path, lock_timeout=0.3) as spool:
        with blocker(tables_url, "LOCK TABLE outbox"):
            refused = await asyncio.gather(*(spool.commit(*FIRST) for _ in range(4)), return_exceptions=True)
            ((renewals,),) = postgres.execute("SELECT count(*) FROM renewal", database=tables_url)
    assert all(isinstance(each, SpoolUnavailable) for each in refused)
    assert renewals >= 3


async def test_a_statement_that_takes_too_long_refuses_the_commit(tables_url: str, tmp_path: Path) -> None:
    async with asyncio.timeout(60), await Spool.open_database(tables_url, tmp_path, statement_timeout=0.2) as spool:
        with blocker(tables_url, "LOCK TABLE outbox"), pytest.raises(SpoolUnavailable, match="too slow"):
            await spool.commit(*FIRST)
        await spool.commit(*FIRST)


async def test_a_deadlock_repeats_the_batch(new_postgres: NewPostgres, tmp_path: Path) -> None:
    # A transaction looks for a deadlock once, after this time. Until then the other one has to wait for it.
    server = new_postgres(deadlock_timeout="2s")
    url = server.new_database()
    create_tables(url)
    async with asyncio.timeout(60), await Spool.open_database(url, tmp_path, lock_timeout=20.0) as spool:
        await spool.commit(SetFact(name="a", value="1"), SetFact(name="b", value="1"))
        with psycopg.connect(url) as other, capture_logs():
            other.execute("SET deadlock_timeout = '1min'")  # So the server chooses the spool's transaction.
            other.execute("UPDATE facts SET value = 'other' WHERE name = 'b'")
            async with asyncio.TaskGroup() as group:
                group.create_task(spool.commit(SetFact(name="a", value="2"), SetFact(name="b", value="2")))
                waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                await until(lambda: server.execute(waits, database=url) != [(0,)])
                await asyncio.to_thread(other.execute, "UPDATE facts SET value = 'other' WHERE name = 'a'")
                other.commit()
        assert await spool.facts() == {"a": "2", "b": "2"}
    assert "deadlock detected" in server.log


FAILS_ONCE = """
    CREATE SEQUENCE tries;
    CREATE FUNCTION fail_once() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF nextval('tries') = 1 THEN RAISE SQLSTATE '{}'; END IF;
        RETURN NEW;
    END $$;
    CREATE {} TRIGGER fails AFTER INSERT ON outbox {} FOR EACH ROW EXECUTE FUNCTION fail_once();
"""
WITH_STATEMENT, WITH_COMMIT = ("", ""), ("CONSTRAINT", "DEFERRABLE INITIALLY DEFERRED")


@pytest.mark.parametrize("moment", [WITH_STATEMENT, WITH_COMMIT], ids=["statement", "commit"])
async def test_a_serialisation_failure_repeats_the_batch(
    tables_url: str, postgres: PostgresServer, tmp_path: Path, moment: tuple[str, str]
) -> None:
    postgres.execute(FAILS_ONCE.format("40001", *moment), database=tables_url)
    async with asyncio.timeout(60), await Spool.open_database(tables_url, tmp_path) as spool:
        await spool.commit(*FIRST)
        assert await turns(spool) == ["t1"]


@pytest.mark.parametrize("moment", [WITH_STATEMENT, WITH_COMMIT], ids=["statement", "commit"])
async def test_a_full_database_refuses_the_commit(
    tables_url: str, postgres: PostgresServer, tmp_path: Path, moment: tuple[str, str]
) -> None:
    postgres.execute(FAILS_ONCE.format("53100", *moment), database=tables_url)
    async with asyncio.timeout(60), await Spool.open_database(tables_url, tmp_path) as spool:
        with pytest.raises(SpoolUnavailable, match="disk of the database is full"):
            await spool.commit(*FIRST)
        assert spool.trouble is not None
        await spool.commit(*FIRST)
        assert spool.trouble is None
        assert await turns(spool) == ["t1"]


async def test_a_read_only_database_refuses_commits_until_it_can_be_written(
    server: PostgresServer, server_url: str, tmp_path: Path
) -> None:
    async with asyncio.timeout(60), await Spool.open_database(server_url, tmp_path) as spool:
        await asyncio.to_thread(server.configure, "default_transaction_read_only", "on")
        with pytest.raises(SpoolUnavailable, match="read-only"):
            await spool.commit(*FIRST)
        await asyncio.to_thread(server.configure, "default_transaction_read_only", "off")
        await until(lambda: spool.trouble is None)
        await spool.commit(*FIRST)
        assert await turns(spool) == ["t1"]


async def test_rights_that_are_taken_away_refuse_commits_until_they_are_back(
    tables_url: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    user = f"user_{os.getpid()}"
    postgres.execute(f"CREATE USER {user}", database=tables_url)
    grant = f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {user}"
    try:
        url = tables_url.replace("user=postgres", f"user={user}")
        with pytest.raises(CannotStart, match="can't be used"):
            await Spool.open_database(url, tmp_path)
        postgres.execute(grant, database=tables_url)
        async with asyncio.timeout(60), await Spool.open_database(url, tmp_path) as spool:
            await spool.commit(*FIRST)
            postgres.execute(f"REVOKE INSERT ON inbox FROM {user}", database=tables_url)
            with pytest.raises(SpoolUnavailable, match="refuses access"):
                await spool.commit(*SECOND)
            postgres.execute(grant, database=tables_url)
            await refused_until_stored(spool, "back")
    finally:
        postgres.execute(f"DROP OWNED BY {user}", database=tables_url)
        postgres.execute(f"DROP USER {user}")


async def test_a_second_gateway_is_refused_and_told_the_first(tables_url: str, tmp_path: Path) -> None:
    async with await Spool.open_database(tables_url, tmp_path) as spool:
        with pytest.raises(CannotStart, match=f"process {os.getpid()} on .* {tmp_path}, since 20"):
            await Spool.open_database(tables_url, tmp_path / "other")
        await spool.commit(*FIRST)
    async with await Spool.open_database(tables_url, tmp_path / "other") as other:
        assert await turns(other) == ["t1"]


def _hold(postgres: PostgresServer, url: str, *, holder: Holder, renewed: str) -> None:
    postgres.execute(
        "INSERT INTO writer VALUES (1, 'boot', %s, 7, now() + %s::interval)",
        [msgspec.json.encode(holder).decode(), renewed],
        database=url,
    )


@pytest.mark.parametrize("renewed", ["-16 seconds", "-1 day", "+1 hour"])
async def test_an_expired_lease_can_be_taken(
    tables_url: str, postgres: PostgresServer, tmp_path: Path, renewed: str
) -> None:
    """A lease that seems to be renewed in the future is one that the clock was set back for."""
    _hold(postgres, tables_url, holder=msgspec.structs.replace(Holder.here(tmp_path), host="other"), renewed=renewed)
    async with await Spool.open_database(tables_url, tmp_path) as spool:
        await spool.commit(*FIRST)


@pytest.mark.parametrize("change", [{"process": 2**22 + 1}, {"started": "1"}], ids=["ended", "id of another process"])
async def test_the_lease_of_a_dead_process_of_this_host_can_be_taken(
    tables_url: str, postgres: PostgresServer, tmp_path: Path, change: dict[str, object]
) -> None:
    _hold(postgres, tables_url, holder=msgspec.structs.replace(Holder.here(tmp_path), **change), renewed="-1 second")
    async with await Spool.open_database(tables_url, tmp_path) as spool:
        await spool.commit(*FIRST)


async def test_a_start_waits_for_the_lease_of_a_gateway_that_crashed_elsewhere(
    tables_url: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    elsewhere = msgspec.structs.replace(Holder.here(tmp_path), host="other")
    _hold(postgres, tables_url, holder=elsewhere, renewed="-13 seconds")
    with capture_logs() as logs:
        async with await Spool.open_database(tables_url, tmp_path) as spool:
            await spool.commit(*FIRST)
    assert "lease_awaited" in [line["event"] for line in logs]


async def test_a_fenced_gateway_stores_nothing_more(tables_url: str, postgres: PostgresServer, tmp_path: Path) -> None:
    """As after a pause of a minute, in which another gateway has started."""
    with capture_logs():
        async with asyncio.timeout(60), await Spool.open_database(tables_url, tmp_path) as paused:
            await paused.commit(*FIRST)
            postgres.execute("UPDATE writer SET renewed_at = now() - interval '1 minute'", database=tables_url)
            async with await Spool.open_database(tables_url, tmp_path / "other") as other:
                with pytest.raises(SpoolBroken, match="taken over"):
                    await paused.commit(*SECOND)
                with pytest.raises(SpoolBroken):
                    await paused.recover()
                assert paused.broken.is_set()
                await other.commit(take("e3"), accept("t3"))
                assert await turns(other) == ["t1", "t3"]


async def test_a_jump_of_the_servers_clock_does_not_stop_the_gateway(
    tables_url: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    async with asyncio.timeout(60), await Spool.open_database(tables_url, tmp_path) as spool:
        for jump in ("1 hour", "-1 hour"):
            update = "UPDATE writer SET renewed_at = renewed_at + %s::interval"
            postgres.execute(update, [jump], database=tables_url)
            await spool.commit(SetFact(name="jump", value=jump))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("/test_", "/no_such_"), "can't be used"),
        (("user=postgres", "user=nobody_here"), "can't be used"),
        (("postgresql://", "postgresql://["), "not a valid PostgreSQL URL"),
    ],
)
async def test_a_wrong_url_cannot_start(
    tables_url: str, tmp_path: Path, change: tuple[str, str], sentence: str
) -> None:
    with pytest.raises(CannotStart, match=sentence):
        await Spool.open_database(tables_url.replace(*change), tmp_path)


async def test_a_database_without_tables_cannot_start(database_url: str, tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="gatehouse db upgrade"):
        await Spool.open_database(database_url, tmp_path)


async def test_a_start_waits_for_a_server_that_is_starting(
    tables_url: str, new_proxy: NewProxy, tmp_path: Path
) -> None:
    proxy = new_proxy(tables_url)
    proxy.refuse()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        opening = group.create_task(Spool.open_database(proxy.url, tmp_path))
        await asyncio.sleep(0.3)
        assert not opening.done()
        proxy.accept()
        async with await opening as spool:
            await spool.commit(*FIRST)


async def test_text_with_a_nul_character_is_stored_without_it(tables_url: str, tmp_path: Path) -> None:
    """PostgreSQL cannot store it, and an error message of a platform may contain it."""
    async with await Spool.open_database(tables_url, tmp_path) as spool:
        await spool.commit(SetFact(name="a\0b", value="x\0y"), accept(text="z\0"))
        assert await spool.facts() == {"a\ufffdb": "x\ufffdy"}
        assert (await spool.recover()).inbox[0].inbound.text == "z\0"


async def test_a_server_that_hangs_counts_as_away(server: PostgresServer, server_url: str, tmp_path: Path) -> None:
    async with asyncio.timeout(120), await Spool.open_database(server_url, tmp_path, statement_timeout=0.5) as spool:
        await spool.commit(*FIRST)
        server.pause()
        with pytest.raises(SpoolUnavailable):
            await spool.commit(*SECOND)
        server.resume()
        await until(lambda: spool.trouble is None)
        await spool.commit(*SECOND)


async def test_an_idle_gateway_renews_its_lease(tables_url: str, postgres: PostgresServer, tmp_path: Path) -> None:
    async with asyncio.timeout(60), await Spool.open_database(tables_url, tmp_path):
        renewed = "SELECT renewed_at FROM writer"
        before = postgres.execute(renewed, database=tables_url)
        await until(lambda: postgres.execute(renewed, database=tables_url) != before)
