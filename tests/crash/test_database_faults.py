"""PostgreSQL fails while the daemon runs: at every kill point of a conversation, and for longer times under load.

Nothing is acknowledged while the database is away, readiness says why, and all goes on by itself when it is back.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

import psycopg
import pytest
from aiohttp import ClientSession, UnixConnector

from gateway.http.server import CONTROL_NAME, short_socket_path
from tests.crash.daemon_spec import DaemonSpec
from tests.crash.daemons import Daemons, daemons
from tests.crash.engines import DATABASE_MODULES
from tests.crash.fake_platform import FakePlatform
from tests.crash.harness import CrashHarness, open_harness
from tests.crash.scale import SCALE
from tests.crash.scenarios import SCENARIOS
from tests.crash.stored import rows
from tests.crash.test_lifecycle import load
from tests.polling import until
from tests.postgres.fixtures import NewPostgres, NewProxy
from tests.postgres.proxy import PostgresProxy
from tests.postgres.server import PostgresServer

STRIDE = max(1, 60 // SCALE)
"""The distance between tried points."""


@dataclass(frozen=True, slots=True)
class Database:
    """A database of a server for one test, which daemons reach through a proxy."""

    server: PostgresServer
    proxy: PostgresProxy
    url: str


def kill(database: Database) -> None:
    database.server.kill()


def stop_at_once(database: Database) -> None:
    database.server.stop("immediate")


def restart(database: Database) -> None:
    database.server.restart()


def cut(database: Database) -> None:
    database.proxy.cut()


def cut_before_commit(database: Database) -> None:
    database.proxy.cut_before(b"COMMIT")


def cut_after_commit(database: Database) -> None:
    database.proxy.cut_after(b"COMMIT")


FAULTS: tuple[Callable[[Database], None], ...] = (kill, stop_at_once, restart, cut, cut_before_commit, cut_after_commit)


@pytest.fixture
def database(new_postgres: NewPostgres, new_proxy: NewProxy) -> Database:
    server = new_postgres()
    return Database(server, new_proxy(server.url()), server.url())


@contextmanager
def emptied(database: Database) -> Iterator[Database]:
    """Yield an empty database on the same server."""
    url = database.server.new_database()
    name = url.partition("?")[0].rpartition("/")[2]
    yield Database(database.server, database.proxy, url=database.proxy.url.replace("/postgres?", f"/{name}?"))
    database.server.drop_database(url)


async def started(harness: CrashHarness, spec: DaemonSpec) -> int:
    """Start daemons until one fetches events, as systemd does: one whose database fails at the start exits."""
    arrival = harness.platform.arrivals + 1
    while True:
        pid = await harness.daemons.start(spec)
        await until(lambda pid=pid: harness.platform.arrivals >= arrival or harness.daemons.has_ended(pid))  # type: ignore[misc]  # mypy knows no default here.
        if not harness.daemons.has_ended(pid):
            return pid
        assert await harness.daemons.ended(pid) == 1, "systemd would not start it again"
        spec = harness.spec


async def survives(forked: Daemons, home: Path, database: Database, fault: Callable[[Database], None], at: int) -> bool:
    """Run a conversation in which the database fails at a point. Returns False if the point was not reached."""
    home.mkdir()  # noqa: ASYNC240 - no other task runs
    spec, platform = DaemonSpec(home=home, storage=database.url), FakePlatform()
    harness = CrashHarness(spec=spec, platform=platform, daemons=forked)
    async with platform.serving(spec.socket):
        platform.write(*SCENARIOS["tools"].events)
        try:
            starting = asyncio.create_task(started(harness, replace(spec, die_at=at, pauses=True)), name="starting")
            await until(lambda: spec.death_report.exists() or (starting.done() and not platform.unsettled()))
            if not spec.death_report.exists():
                spec.resume.touch()  # The shutdown may reach the point.
                await harness.stop(await starting)
                return False
            await asyncio.to_thread(fault, database)
            spec.resume.touch()
            if not database.server.is_running:
                await asyncio.sleep(0.3)  # There is no event for the absence of acknowledgements.
                acknowledged = set(platform.acknowledged)
                await asyncio.to_thread(database.server.start)
                assert not acknowledged or acknowledged <= {
                    event for (event,) in rows(spec, "SELECT event_id FROM seen")
                }
            pid = await starting
            await platform.until_settled()
            await harness.stop(pid)
            harness.check()
        except BaseException as failure:
            reached = spec.death_report.read_text() if spec.death_report.exists() else "no point"
            failure.add_note(f"{fault.__name__} at {at}, {reached}\nlog: {spec.log}\nunsettled: {platform.unsettled()}")
            raise
    return True


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_no_message_is_lost_or_answered_twice_if_the_database_fails_at_any_point(
    tmp_path: Path,
    database: Database,
    record_property: Callable[[str, object], None],
    fault: Callable[[Database], None],
) -> None:
    at, is_reached = 1 + FAULTS.index(fault) * 9, True
    faults = 0
    async with daemons(imports=DATABASE_MODULES) as forked:
        while is_reached:
            with emptied(database) as empty:
                is_reached = await survives(forked, tmp_path / str(at), empty, fault, at)
            at, faults = at + STRIDE, faults + is_reached
    record_property("faults", faults)
    assert faults > 1


async def readiness(spec: DaemonSpec) -> tuple[int, str]:
    """Return the answer of `/readyz`."""
    with short_socket_path(spec.data_dir / CONTROL_NAME) as path:
        async with (
            ClientSession(connector=UnixConnector(path=str(path))) as http,
            http.get("http://gatehouse/readyz") as response,
        ):
            return response.status, await response.text()


async def says(spec: DaemonSpec, status: int, word: str = "") -> None:
    """Wait until `/readyz` answers with that status and word."""

    async def is_so() -> bool:
        found, text = await readiness(spec)
        return found == status and word in text

    await until(is_so)


def make_read_only(database: Database) -> None:
    database.server.execute("ALTER DATABASE postgres SET default_transaction_read_only = on")
    database.proxy.cut()


def make_writable(database: Database) -> None:
    database.server.execute("BEGIN READ WRITE; ALTER DATABASE postgres SET default_transaction_read_only = off; COMMIT")


OUTAGES: dict[str, tuple[Callable[[Database], None], Callable[[Database], None], str]] = {
    "killed": (kill, lambda database: database.server.start(), "can't be reached"),
    "read-only": (make_read_only, make_writable, "read-only"),
}
"""How the database goes away and comes back, and what readiness says meanwhile."""


@pytest.mark.parametrize("outage", OUTAGES)
async def test_messages_wait_at_the_platform_while_the_database_is_away(
    tmp_path: Path, database: Database, outage: str
) -> None:
    goes, returns, reason = OUTAGES[outage]
    async with open_harness(tmp_path, storage=database.proxy.url) as harness:
        events = load(60)
        harness.platform.write(*events[:20])
        pid = await harness.start()
        await harness.acknowledged(10)
        await asyncio.to_thread(goes, database)
        harness.platform.write(*events[20:])
        await says(harness.spec, 503, reason)
        acknowledged = set(harness.platform.acknowledged)
        await asyncio.sleep(1)  # There is no event for the absence of acknowledgements.
        assert set(harness.platform.acknowledged) == acknowledged
        assert len(acknowledged) < len(events)
        await asyncio.to_thread(returns, database)
        assert acknowledged <= {event for (event,) in rows(harness.spec, "SELECT event_id FROM seen")}
        await says(harness.spec, 200)
        await harness.platform.until_settled()
        assert not harness.daemons.has_ended(pid)
        await harness.stop(pid)
        harness.check()


async def test_a_database_that_hangs_for_a_while_loses_no_message(tmp_path: Path, database: Database) -> None:
    async with open_harness(tmp_path, storage=database.proxy.url) as harness:
        harness.platform.write(*load(60))
        pid = await harness.start()
        await harness.acknowledged(10)
        await asyncio.to_thread(database.server.pause)
        await asyncio.sleep(2)  # As above.
        await asyncio.to_thread(database.server.resume)
        await harness.platform.until_settled()
        await harness.stop(pid)
        harness.check()


async def test_messages_wait_while_a_person_locks_a_table(tmp_path: Path, database: Database) -> None:
    storage = f"{database.url}&options=-c%20lock_timeout%3D200"
    async with open_harness(tmp_path, storage=storage) as harness:
        events = load(60)
        harness.platform.write(*events[:20])
        pid = await harness.start()
        await harness.platform.until_settled()
        with psycopg.connect(database.url) as person:
            person.execute("LOCK TABLE inbox IN ACCESS EXCLUSIVE MODE")
            harness.platform.write(*events[20:])
            await says(harness.spec, 503, "locked or too slow")
            assert len(harness.platform.acknowledged) == 20
        await harness.platform.until_settled()
        await says(harness.spec, 200)
        await harness.stop(pid)
        harness.check()


async def test_a_daemon_can_be_stopped_while_the_database_is_away(tmp_path: Path, database: Database) -> None:
    async with open_harness(tmp_path, storage=database.url, shutdown_timeout=2.0) as harness:
        harness.platform.write(*load(60))
        pid = await harness.start()
        await harness.acknowledged(10)
        await asyncio.to_thread(database.server.kill)
        began = monotonic()
        await harness.daemons.stop(pid)
        assert monotonic() - began < 30
        await asyncio.to_thread(database.server.start)
        harness.deaths += 1  # The outcomes of its last sends are unknown.
        await harness.finish()
