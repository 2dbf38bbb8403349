"""Migrations of the database, with data, on SQLite and on both versions of PostgreSQL."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psycopg
import pytest
from alembic.script import ScriptDirectory
from structlog.testing import capture_logs

from config import MigrateMode, Secret, StorageEngine, StorageSettings
from gateway import __version__
from gateway.database import migrate
from gateway.database.node_lease import NodeLease, TooOld
from gateway.database.postgres import PostgresConnection
from gateway.database.schema_check import differences
from gateway.database.views import MESSAGE_TYPES
from gateway.distribution import Installation
from gateway.errors import CannotStart
from gateway.sessions import entries
from tests.database.harness import connected, store_entries, store_session
from tests.postgres.server import PostgresServer

KEY = "telegram:42"
# A row for each table, besides those of sessions.
ROWS = {
    "seen": "(channel, account, event_id, at) VALUES ('telegram', 'main', '7', 1)",
    "inbox": "(turn, state, scope, session, number, agent, accepted_at, inbound) "
    "VALUES ('t', 'waiting', 's', 's', 1, 'main', 1, {blob})",
    "outbox": "(key, state, created_at, message) VALUES ('k', 'waiting', 1, {blob})",
    "drafts": "(turn, receipt, at) VALUES ('t', {blob}, 1)",
    "facts": "(name, value) VALUES ('n', 'v')",
    "usage": "VALUES ('2026-11-18', 'me', 'gpt', 1, 2, 3, 4)",
    "reminders": "(id, scope, number, about) VALUES ('r', 's', 1, {blob})",
    "deletions": "VALUES ('s', 1, 0)",
    "writer": "(id, boot, holder) VALUES (1, '', '')",
}


# Those of the first migration.
TABLES = (*ROWS, "repo", "session", "entry")


def fill(storage: StorageSettings) -> None:
    """Store a row in each table."""
    with connected(storage) as sql:
        for table, row in ROWS.items():
            blob = "x'00ff'" if sql.is_sqlite else r"'\x00ff'::bytea"
            sql(f"INSERT INTO {table} {row.format(blob=blob)}")
        store_session(sql, KEY, repo="website")
        store_entries(sql, KEY, [entries.User(content="Hello."), entries.Assistant(content="Hi.")])


def counts(storage: StorageSettings) -> dict[str, int]:
    with connected(storage) as sql:
        return {name: sql(f"SELECT count(*) FROM {name}")[0][0] for name in TABLES}  # noqa: S608 - constants.


def tables_of(storage: StorageSettings) -> set[str]:
    with connected(storage) as sql:
        if sql.is_sqlite:
            return {name for (name,) in sql("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")}
        return {name for (name,) in sql("SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace")}


def test_the_list_of_revisions_is_that_of_the_files() -> None:
    script = ScriptDirectory(str(Path(migrate.__file__).with_name("migrations")))
    found = [revision.revision for revision in script.walk_revisions()]
    assert tuple(reversed(found)) == migrate.REVISIONS
    assert all(revision.doc for revision in script.walk_revisions())


def test_a_migration_allows_at_most_the_version_before() -> None:
    """So versions that run at the same time differ by one schema only."""
    script = ScriptDirectory(str(Path(migrate.__file__).with_name("migrations")))
    declared = {revision.revision: revision for revision in script.walk_revisions() if revision.revision >= "0003"}
    for number, revision in declared.items():
        assert revision.module.oldest in {number, revision.down_revision}, number


def test_up_and_down_with_data(storage: StorageSettings) -> None:
    assert migrate.current(storage) is None
    for position, revision in enumerate(migrate.REVISIONS):
        assert migrate.upgrade(storage, revision) == (migrate.REVISIONS[position - 1] if position else None)
        assert migrate.current(storage) == revision
        if position == 0:
            fill(storage)
    stored = counts(storage)
    assert set(stored.values()) == {1, 2}
    assert migrate.upgrade(storage) == migrate.HEAD
    for revision in reversed(migrate.REVISIONS[:-1]):
        migrate.downgrade(storage, revision)
        assert migrate.current(storage) == revision
        assert counts(storage) == stored
    assert migrate.downgrade(storage, migrate.BASE) is not None
    assert migrate.current(storage) is None
    assert tables_of(storage) <= {"alembic_version", "alembic_version_pkc"}
    assert migrate.upgrade(storage) is None


def test_migrations_make_the_schema(storage: StorageSettings) -> None:
    migrate.upgrade(storage)
    assert differences(storage) == []


def test_differences_are_named(storage: StorageSettings) -> None:
    migrate.upgrade(storage)
    with connected(storage) as sql:
        sql("DROP INDEX session_status")
        sql("ALTER TABLE facts ADD COLUMN mood TEXT")
        sql("DROP VIEW AgentMessage")
        sql("DROP VIEW AgentSession")
        sql("CREATE VIEW AgentSession AS SELECT id FROM session")
        sql("CREATE INDEX inbox_agent ON inbox (agent)")
    found = differences(storage)
    assert "The index session_status is missing." in found
    assert "The column facts.mood is not part of the schema." in found
    assert "The view AgentMessage is missing." in found
    assert "The index inbox_agent is not part of the schema." in found
    (view,) = [each for each in found if "AgentSession" in each]
    assert "and should be" in view
    assert len(found) == 5
    with connected(storage) as sql:
        assert sql("SELECT count(*) FROM session") == [(0,)]


def test_the_start_creates_the_tables(storage: StorageSettings) -> None:
    migrate.ensure_current(storage)
    migrate.ensure_current(storage)
    assert migrate.current(storage) == migrate.HEAD


def test_the_start_does_not_migrate_if_a_person_does(storage: StorageSettings) -> None:
    manual = storage.model_copy(update={"migrate": MigrateMode.MANUAL})
    with pytest.raises(CannotStart, match="gatehouse db upgrade"):
        migrate.ensure_current(manual)
    assert migrate.current(storage) is None
    migrate.upgrade(storage)
    migrate.ensure_current(manual)


def test_the_start_with_a_current_schema_imports_no_alembic(storage: StorageSettings) -> None:
    migrate.upgrade(storage)
    script = (
        "import sys; from config import StorageSettings; from gateway.database import migrate; "
        "migrate.ensure_current(StorageSettings(url=sys.argv[1])); "
        "print([name for name in ('alembic', 'sqlalchemy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script, storage.url], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_of_two_upgrades_at_the_same_time_one_does_the_work(storage: StorageSettings) -> None:
    barrier = threading.Barrier(4)

    def upgrade(_: int) -> str | None:
        barrier.wait()
        return migrate.upgrade(storage)

    with ThreadPoolExecutor(4) as threads:
        before = list(threads.map(upgrade, range(4)))
    assert sorted(before, key=str) == sorted([migrate.HEAD] * 3 + [None], key=str)
    assert differences(storage) == []


def test_a_newer_schema_is_refused(storage: StorageSettings) -> None:
    migrate.upgrade(storage)
    with connected(storage) as sql:
        sql("UPDATE alembic_version SET version_num = '0999'")
        sql("UPDATE compatibility SET oldest = '0998', version = '9.9.8'")
    for by in ("Gatehouse 9.9.8", "a newer Gatehouse"):
        for attempt in (migrate.current, migrate.ensure_current, migrate.upgrade):
            with pytest.raises(CannotStart) as caught:
                attempt(storage)
            this = f"version {__version__} (schema {migrate.HEAD}) is too old for it"
            assert f"{by} (schema 0999), and {this}. Start the newer version" in str(caught.value)
        with pytest.raises(CannotStart):
            migrate.downgrade(storage, migrate.BASE)
        with connected(storage) as sql:  # As in a version that keeps it elsewhere.
            sql("DROP TABLE IF EXISTS compatibility")


def test_a_newer_schema_that_allows_this_version_is_used(storage: StorageSettings) -> None:
    migrate.upgrade(storage)
    with connected(storage) as sql:
        # The newest migration only adds tables, so the version before may use its result.
        assert sql("SELECT oldest, version FROM compatibility") == [(migrate.REVISIONS[-2], __version__)]
        sql("UPDATE alembic_version SET version_num = '0999'")
    for attempt in (migrate.current, migrate.upgrade):
        assert attempt(storage) == "0999"
    migrate.ensure_current(storage.model_copy(update={"migrate": MigrateMode.MANUAL}))
    with pytest.raises(migrate.NewerSchema, match="with it"):
        migrate.downgrade(storage, migrate.BASE)
    with pytest.raises(migrate.NewerSchema, match="with it"):
        migrate.sql(storage.engine, "0999", migrate.BASE)
    assert counts(storage)["session"] == 0


def test_a_downgrade_records_which_versions_may_use_the_database(storage: StorageSettings) -> None:
    migrate.upgrade(storage)
    migrate.downgrade(storage, "0003")
    with connected(storage) as sql:
        assert sql("SELECT oldest FROM compatibility") == [("0003",)]


def test_the_versions_of_another_program_are_refused(storage: StorageSettings) -> None:
    with connected(storage) as sql:
        sql("CREATE TABLE alembic_version (version_num VARCHAR(32))")
        sql("INSERT INTO alembic_version VALUES ('a1b2c3')")
    with pytest.raises(CannotStart, match="belongs to another program"):
        migrate.ensure_current(storage)


def test_tables_of_another_program_stay_as_they_are(storage: StorageSettings) -> None:
    with connected(storage) as sql:
        sql("CREATE TABLE inbox (id INTEGER)")
    with pytest.raises(CannotStart, match="of another program"):
        migrate.ensure_current(storage)
    assert tables_of(storage) == {"inbox"}


KILLED = """
import os, signal, sys
from sqlalchemy import Engine, event
from config import StorageSettings
from gateway.database import migrate

def kill(connection, cursor, statement, *rest):
    if "CREATE VIEW AgentMessage" in statement:
        os.kill(os.getpid(), signal.SIGKILL)

event.listen(Engine, "before_cursor_execute", kill)
migrate.upgrade(StorageSettings(url=sys.argv[1]))
"""


def test_a_kill_in_the_middle_leaves_the_old_schema(storage: StorageSettings) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, storage.url], check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert migrate.current(storage) is None
    assert tables_of(storage) == set()
    migrate.ensure_current(storage)
    assert differences(storage) == []


def test_a_new_file_is_private(tmp_path: Path) -> None:
    path = tmp_path / "new" / "gatehouse.db"
    migrate.upgrade(StorageSettings(url=f"sqlite:{path}"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA auto_vacuum").fetchone() == (2,)


def test_a_file_in_use_is_refused(tmp_path: Path) -> None:
    storage = StorageSettings(url=f"sqlite:{tmp_path}/gatehouse.db", lock_timeout=0.1)
    migrate.upgrade(storage)
    with closing(sqlite3.connect(storage.path, isolation_level=None)) as gateway:
        gateway.execute("PRAGMA locking_mode = EXCLUSIVE")
        gateway.execute("BEGIN EXCLUSIVE")
        with pytest.raises(CannotStart, match="in use by another process"):
            migrate.downgrade(storage, migrate.BASE)


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to have a header" * 100, b"SQLite format 3\0" * 999]
)
def test_another_file_is_refused_and_stays(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "gatehouse.db"
    path.write_bytes(content)
    with pytest.raises(CannotStart, match="damaged, or no SQLite database"):
        migrate.ensure_current(StorageSettings(url=f"sqlite:{path}"))
    assert path.read_bytes() == content


def test_a_link_or_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "elsewhere.db")
    (tmp_path / "elsewhere.db").touch()
    (tmp_path / "folder.db").mkdir()
    for name in ("link.db", "folder.db"):
        with pytest.raises(CannotStart, match="Can't use"):
            migrate.ensure_current(StorageSettings(url=f"sqlite:{tmp_path}/{name}"))


@pytest.fixture
def postgres_storage(each_database_url: str) -> StorageSettings:
    return StorageSettings(url=each_database_url)


@pytest.mark.parametrize("age", ["0 seconds", "-5 seconds"])
def test_a_running_gateway_keeps_its_schema(postgres_storage: StorageSettings, age: str) -> None:
    migrate.upgrade(postgres_storage)
    with connected(postgres_storage) as sql:
        sql(f"INSERT INTO writer VALUES (1, 'b', 'host-7', 0, now() - interval '{age}')")  # noqa: S608 - a constant.
        with pytest.raises(migrate.GatewayRuns, match="host-7"):
            migrate.downgrade(postgres_storage, migrate.BASE)
        sql("UPDATE writer SET renewed_at = now() - interval '1 minute'")
    migrate.downgrade(postgres_storage, migrate.BASE)


JOIN = (
    "INSERT INTO node (boot, name, address, holder, version, schema, config, lease_ms) "
    "VALUES (?, ?, '', '', ?, ?, '', 60000)"
)


def test_a_cluster_keeps_its_schema(postgres_storage: StorageSettings) -> None:
    """A node that is silent loses its row: should it only be paused, nothing that it writes later is stored."""
    migrate.upgrade(postgres_storage, "0003")
    with connected(postgres_storage) as sql:
        sql(JOIN, "b1", "one", "0.0.1", "0003")
        sql(JOIN, "b2", "two", "0.0.2", migrate.REVISIONS[-2])
        with pytest.raises(migrate.GatewayRuns, match="one, two") as refused:
            migrate.downgrade(postgres_storage, migrate.BASE)
        with pytest.raises(migrate.GatewayRuns, match=r"one \(version 0.0.1, schema 0003\)") as refused:
            migrate.upgrade(postgres_storage)
        assert "two" not in str(refused.value)
        sql("UPDATE node SET renewed_at = now() - interval '2 minutes' WHERE boot = 'b1'")
        migrate.upgrade(postgres_storage)
        assert sql("SELECT boot FROM node") == [("b2",)]
        sql("UPDATE node SET renewed_at = now() - interval '2 minutes'")
        migrate.downgrade(postgres_storage, "0003")
        assert sql("SELECT boot FROM node") == []


def test_a_node_that_joins_sees_a_migration_that_ends(postgres_storage: StorageSettings) -> None:
    migrate.upgrade(postgres_storage)
    with (
        psycopg.connect(postgres_storage.url) as migrating,
        PostgresConnection(postgres_storage.url) as joining,
        ThreadPoolExecutor(1) as threads,
    ):
        migrating.execute("SELECT pg_advisory_xact_lock(%s)", (migrate.LOCK,))
        migrating.execute("UPDATE alembic_version SET version_num = '0999'")
        migrating.execute("UPDATE compatibility SET oldest = '0999'")
        joining.begin()
        checked = threads.submit(migrate.require_usable, joining)
        wait_for_lock(migrating)
        migrating.commit()
        with pytest.raises(migrate.NewerSchema):
            checked.result(60)


def test_a_migration_sees_a_node_that_has_joined_before(postgres_storage: StorageSettings) -> None:
    migrate.upgrade(postgres_storage, "0003")
    with psycopg.connect(postgres_storage.url) as joining, ThreadPoolExecutor(1) as threads:
        joining.execute("SELECT pg_advisory_xact_lock_shared(%s)", (migrate.LOCK,))
        upgraded = threads.submit(migrate.upgrade, postgres_storage)
        wait_for_lock(joining)
        joining.execute(JOIN.replace("?", "%s"), ("b1", "one", "0.0.1", "0003"))
        joining.commit()
        with pytest.raises(migrate.GatewayRuns, match="one"):
            upgraded.result(60)


def wait_for_lock(connection: psycopg.Connection[tuple[Any, ...]]) -> None:  # Any: the types of the columns.
    """Return when another connection waits for the lock of migrations in this database."""
    waiting = (
        "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted "
        "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    deadline = monotonic() + 60
    while connection.execute(waiting).fetchone() is None:
        assert monotonic() < deadline
        sleep(0.01)


@pytest.mark.parametrize(("ahead", "is_refused"), [(1, False), (2, True)])
def test_a_node_may_be_one_schema_behind_the_others(
    postgres_storage: StorageSettings, tmp_path: Path, ahead: int, *, is_refused: bool
) -> None:
    migrate.upgrade(postgres_storage)
    schema = f"{int(migrate.HEAD) + ahead:04}"
    lease = NodeLease(tmp_path, name="two", seconds=8.0, version="1.0.0", schema=migrate.HEAD, config="")
    with connected(postgres_storage) as sql, PostgresConnection(postgres_storage.url) as joining:
        sql(JOIN, "b1", "one", "2.0.0", schema)
        if is_refused:
            with pytest.raises(TooOld, match=rf"one has version 2.0.0, schema {schema}"):
                lease.take(joining)
        else:
            lease.take(joining)
        assert len(sql("SELECT boot FROM node")) == (1 if is_refused else 2)


def test_a_migration_waits_only_a_moment_for_the_tables_of_running_nodes(postgres_storage: StorageSettings) -> None:
    migrate.upgrade(postgres_storage, "0003")
    with connected(postgres_storage) as sql, psycopg.connect(postgres_storage.url) as busy:
        sql(JOIN, "b2", "two", "0.0.2", migrate.REVISIONS[-2])
        busy.execute("UPDATE alembic_version SET version_num = version_num")
        with ThreadPoolExecutor(1) as threads, capture_logs() as logs:
            upgrade = threads.submit(migrate.upgrade, postgres_storage)
            while not logs and not upgrade.done():
                sleep(0.01)
            assert [each["event"] for each in logs] == ["migration_postponed"]
            busy.rollback()
            assert upgrade.result(60) == "0003"
    assert differences(postgres_storage) == []


def test_a_user_without_rights_is_told_what_to_do(each_database_url: str) -> None:
    of_another_user = StorageSettings(url=each_database_url.replace("user=postgres", "user=poor"))
    with psycopg.connect(each_database_url, autocommit=True) as admin:
        admin.execute("CREATE ROLE poor LOGIN")
        try:
            with pytest.raises(CannotStart, match="GRANT CREATE ON SCHEMA"):
                migrate.ensure_current(of_another_user)
            migrate.ensure_current(StorageSettings(url=each_database_url))
            with pytest.raises(CannotStart, match=r"Set storage\.url to the user that owns the tables"):
                migrate.ensure_current(of_another_user)
        finally:
            admin.execute("DROP ROLE poor")


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_store_all_texts_is_refused(postgres: PostgresServer, encoding: str) -> None:
    url = postgres.new_database(encoding=encoding)
    with pytest.raises(CannotStart, match=f"has the encoding {encoding}. Create it with UTF8"):
        migrate.ensure_current(StorageSettings(url=url))
    postgres.drop_database(url)


def test_an_unreachable_server_is_no_reason_to_give_up(tmp_path: Path) -> None:
    url = f"postgresql:///gatehouse?host={tmp_path}&user=me"
    storage = StorageSettings(url=url, password=Secret("canary"), connect_timeout=1)
    with pytest.raises(OSError, match="can't be reached") as caught:
        migrate.ensure_current(storage)
    assert "canary" not in str(caught.value)


def test_a_locked_table_is_not_awaited_for_ever(postgres_storage: StorageSettings) -> None:
    migrate.ensure_current(postgres_storage)
    hasty = postgres_storage.model_copy(update={"lock_timeout": 0.2})
    with psycopg.connect(postgres_storage.url) as locker:
        locker.execute("LOCK TABLE alembic_version")
        for attempt in (migrate.ensure_current, migrate.current):
            with pytest.raises(CannotStart, match="another program holds a lock"):
                attempt(hasty)


def test_a_schema_of_its_own_is_used(postgres_storage: StorageSettings) -> None:
    with connected(postgres_storage) as sql:
        sql("CREATE SCHEMA chat")
        sql("CREATE TABLE inbox (id INTEGER)")
    own = StorageSettings(url=f"{postgres_storage.url}&options=-csearch_path%3Dchat")
    migrate.ensure_current(own)
    assert differences(own) == []
    assert tables_of(postgres_storage) == {"inbox"}


@pytest.mark.parametrize("engine", [StorageEngine.SQLITE, StorageEngine.POSTGRESQL])
def test_the_statements_can_be_printed(engine: StorageEngine) -> None:
    up = migrate.sql(engine, None, migrate.HEAD)
    assert "CREATE VIEW AgentMessage" in up
    assert f"version_num='{migrate.HEAD}'" in up
    assert "DROP TABLE session" in migrate.sql(engine, migrate.HEAD, migrate.BASE)


def test_printed_statements_make_the_schema(storage: StorageSettings) -> None:
    statements = migrate.sql(storage.engine, None, migrate.HEAD)
    if storage.engine is StorageEngine.SQLITE:
        with closing(sqlite3.connect(storage.path)) as file:
            file.executescript(statements)
    else:
        with psycopg.connect(storage.url, autocommit=True) as server:
            server.execute(statements.encode())
    assert migrate.current(storage) == migrate.HEAD
    assert differences(storage) == []


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("psycopg", "alembic"):
        monkeypatch.setitem(sys.modules, module, None)
    for url, extra in (("sqlite:x.db", "sql"), ("postgresql:///x", "postgres")):
        sentence = migrate.missing_extra(StorageSettings(url=url))
        assert sentence is not None
        assert sentence.endswith(f"Install it: {Installation.present().extra_command(extra)}")
    assert migrate.missing_extra(StorageSettings()) is None


def test_every_type_of_message_is_one_of_an_entry() -> None:
    tags = {kind.__struct_config__.tag for kind in entries.Entry.__subclasses__()}
    assert set(MESSAGE_TYPES) <= tags


def test_the_migrations_are_in_the_wheel(tmp_path: Path) -> None:
    root = Path(migrate.__file__).parents[2]
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=root, check=True, capture_output=True, env={**os.environ})
    (wheel,) = tmp_path.glob("*.whl")
    listed = subprocess.run(
        [sys.executable, "-m", "zipfile", "-l", str(wheel)], check=True, capture_output=True, text=True
    )
    for name in ("env.py", "script.py.mako", "versions/0001_sessions_and_spool.py"):
        assert f"gateway/database/migrations/{name}" in listed.stdout
