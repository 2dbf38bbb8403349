"""Migrates the database: which schema it has, whether that is the newest one, and the way there and back.

Alembic and SQLAlchemy are imported only when something has to be migrated: the daemon starts without them. A migration
is one transaction under a lock. If the process dies in the middle, the database has the old schema and all its data.

Each migration says in `oldest` which is the oldest schema whose version may use the database afterwards: its own one,
or the one before it. The table `compatibility` keeps that, so that an older version knows whether it may go on, and
nodes of a cluster can be updated one after the other. docs/adr/0053-upgrade-by-one-version.md has the rules.
"""

import errno
import math
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import structlog

from config import MigrateMode, StorageEngine, StorageSettings
from config.files import make_private_directory
from gateway import __version__
from gateway.data_dir import unusable
from gateway.database.connection import Connection
from gateway.database.lease import LEASE_SECONDS, describe_holder
from gateway.database.postgres import Cause, cause_of, describe, parse_url, refusal, require_utf8
from gateway.distribution import Installation
from gateway.errors import CannotStart
from gateway.private_files import CREATE, open_private, require_file

if TYPE_CHECKING:
    import psycopg
    import sqlalchemy
    from alembic.config import Config

log: structlog.stdlib.BoundLogger = structlog.get_logger()

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006")
"""The migrations, in order. Each is a file in `migrations/versions/`."""
HEAD = REVISIONS[-1]
BASE = "base"
"""Stands for a database without a schema."""

LOCK = 7_147_042_386_119_201
"""The advisory lock of PostgreSQL that a migration holds. Any number that no other program uses would do."""
REHEARSAL_SCHEMA = "gatehouse_rehearsal_"
"""How the name of the schema starts in which `gatehouse upgrade --check` keeps its copy of a PostgreSQL database."""
_LOCK = (
    f"CASE WHEN starts_with(current_schema(), '{REHEARSAL_SCHEMA}') THEN hashtextextended(current_schema(), 0) "
    f"ELSE {LOCK} END"
)
"""The lock that a migration takes. That of a copy holds up no gateway that uses the database."""
MIN_SQLITE = (3, 38)
"""The first version of SQLite with the operator `->`, which the views use."""
_READ_TIMEOUT = 2.0

_LIVE_LOCK_TIMEOUT = 0.2
"""Seconds for which a migration waits for a lock while nodes run. They wait behind it for that long."""
_LIVE_STATEMENT_TIMEOUT = 1.0
"""Seconds that a statement of such a migration may take."""
_LIVE_WAIT = 15.0
"""Seconds for which such a migration is tried again when it could not get a lock."""
_LIVE_PAUSE = 0.5
"""Seconds between two tries, in which the nodes go on."""

_HAS_TABLE = {
    StorageEngine.SQLITE: "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = '{}'",
    StorageEngine.POSTGRESQL: "SELECT to_regclass('{}') IS NOT NULL",
}

_FirstRow = Callable[[str], Any]  # Any: the types of the columns.
"""Runs a query and returns its first row, or None."""


class ForeignDatabase(CannotStart):
    """The database has tables of another program."""


class NewerSchema(CannotStart):
    """A newer version has migrated the database, and this one cannot use it any more."""


class GatewayRuns(CannotStart):
    """A running gateway uses the database."""


class TooBusy(CannotStart):
    """A statement did not get its locks, or did not end, in time."""


def missing_extra(storage: StorageSettings) -> str | None:
    """Return the sentence for an extra that the engine needs and that is not installed."""
    modules = {
        StorageEngine.FILES: (),
        StorageEngine.SQLITE: ("alembic", "sqlalchemy"),
        StorageEngine.POSTGRESQL: ("alembic", "psycopg", "sqlalchemy"),
    }[storage.engine]
    if all(find_spec(module) is not None for module in modules):
        return None
    extra = "sql" if storage.engine is StorageEngine.SQLITE else "postgres"
    command = Installation.present().extra_command(extra)
    return f"storage.url needs an extra that is not installed. Install it: {command}"


def ensure_current(storage: StorageSettings) -> None:
    """Bring the database to the newest schema, or raise `CannotStart`. The daemon calls this when it starts.

    A newer schema stays, if this version may use it.
    """
    found = current(storage)
    if _position(found) >= _position(HEAD):
        return
    if storage.migrate is MigrateMode.MANUAL:
        raise _outdated(found)
    # A gateway that was killed keeps its lease for a while. After that it cannot be alive.
    deadline = monotonic() + LEASE_SECONDS + 1
    while True:
        try:
            upgrade(storage)
        except GatewayRuns:
            if monotonic() > deadline:
                raise
            sleep(1)
        else:
            return


def current(storage: StorageSettings) -> str | None:
    """Return the revision of the schema, or None if the database is empty or does not exist.

    It may be a newer one that this version can use. Raises `NewerSchema` or `ForeignDatabase` otherwise.
    """
    with _explained(storage):
        if storage.engine is StorageEngine.SQLITE:
            return _version_of_file(storage, timeout=_READ_TIMEOUT)
        with _open_postgres(storage) as connection:
            for timeout in _timeouts(lock=storage.lock_timeout, statement=storage.statement_timeout):
                connection.execute(timeout.encode())
            return _read_version(lambda sql: connection.execute(sql.encode()).fetchone(), storage.engine)


def require_usable(connection: Connection) -> None:
    """Raise `CannotStart` if this version cannot use the PostgreSQL database, which may have been migrated just now.

    No migration begins before the transaction of the caller has ended, so each one sees who has joined.
    """
    connection.execute(f"SELECT pg_advisory_xact_lock_shared({_LOCK})").fetchall()
    found = _read_version(lambda sql: connection.execute(sql).fetchone(), StorageEngine.POSTGRESQL)
    if _position(found) < _position(HEAD):
        raise _outdated(found)


def _version_of_file(storage: StorageSettings, *, timeout: float) -> str | None:
    if not storage.path.exists():
        return None
    with closing(_open_sqlite(storage, timeout=timeout)) as connection:
        tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        names = {name for (name,) in connection.execute(tables)}
        if names and "alembic_version" not in names:
            raise ForeignDatabase(f"{storage.path} is a database of another program. Set storage.url to another file.")
        return _read_version(lambda sql: connection.execute(sql).fetchone(), storage.engine)


def _read_version(first_row: _FirstRow, engine: StorageEngine) -> str | None:
    """Return the revision of a database that this version can use."""
    has_table = _HAS_TABLE[engine].format
    if not first_row(has_table("alembic_version"))[0]:
        return None
    row = first_row("SELECT version_num FROM alembic_version")
    revision: str | None = row[0] if row else None
    if revision is None or revision in REVISIONS:
        return revision
    if is_newer(revision):
        has_limit = first_row(has_table("compatibility"))[0]
        oldest, version = (has_limit and first_row("SELECT oldest, version FROM compatibility")) or ("", "")
        if oldest and oldest <= HEAD:
            return revision
        raise _newer(revision, version)
    raise ForeignDatabase(
        f"The table alembic_version in the database belongs to another program (its revision is {revision}). "
        "Set storage.url to a database or a schema of its own."
    )


def is_newer(revision: str | None) -> bool:
    """Return whether only a newer version knows this revision. They are numbers of the same length."""
    return revision is not None and revision.isdecimal() and revision > HEAD


def _newer(revision: str, version: str = "") -> NewerSchema:
    by = f"Gatehouse {version}" if version else "a newer Gatehouse"
    return NewerSchema(
        f"The database was migrated by {by} (schema {revision}), and version {__version__} (schema {HEAD}) is too old "
        f"for it. Start the newer version, or run `gatehouse db downgrade {HEAD}` with it. Nothing was changed."
    )


def _outdated(revision: str | None) -> CannotStart:
    state = f"has schema {revision}, and this version needs {HEAD}" if revision else "has no tables yet"
    return CannotStart(
        f'The database {state}. Run `gatehouse db upgrade`, or set storage.migrate to "auto". Nothing was changed.'
    )


def upgrade(storage: StorageSettings, revision: str = HEAD) -> str | None:
    """Migrate up to `revision`, and return the revision before. Does nothing if the database is already there.

    Of two upgrades at the same time, the second one waits, and then finds nothing to do. Nodes of a cluster may run if
    they can use the new schema.
    """
    deadline = monotonic() + _LIVE_WAIT
    while True:
        nodes: list[str] = []
        try:
            with _explained(storage), _transaction(storage) as connection:
                before = _version_in(connection)
                if _position(before) >= _position(revision):
                    return before
                config = _alembic(connection=connection)
                if before is not None:
                    nodes = _refuse_running(connection, revision, _oldest(config, revision))
                if nodes:
                    for timeout in _timeouts(lock=_LIVE_LOCK_TIMEOUT, statement=_LIVE_STATEMENT_TIMEOUT):
                        connection.exec_driver_sql(timeout)
                from alembic import command  # noqa: PLC0415 - see the docstring of the module.

                command.upgrade(config, revision)
        except TooBusy as error:
            if not nodes:
                raise
            if monotonic() > deadline:
                raise GatewayRuns(
                    f"The migration to schema {revision} would hold up the running nodes for too long: "
                    f"{', '.join(nodes)}. Try again when they are less busy, or stop them first. Nothing was changed."
                ) from error
            log.info("migration_postponed", to=revision, reason=str(error))
            sleep(_LIVE_PAUSE)
        else:
            log.info("database_migrated", since=before or BASE, to=revision)
            return before


def downgrade(storage: StorageSettings, revision: str) -> str | None:
    """Migrate down to `revision`, and return the revision before. `BASE` deletes all data."""
    with _explained(storage), _transaction(storage) as connection:
        before = _version_in(connection)
        if _position(before) <= _position(revision):
            return before
        if before is not None and is_newer(before):
            raise _newer(before)
        _refuse_running(connection)
        from alembic import command  # noqa: PLC0415 - see the docstring of the module.

        command.downgrade(_alembic(connection=connection), revision)
    log.info("database_migrated", since=before or BASE, to=revision)
    return before


def sql(engine: StorageEngine, before: str | None, revision: str) -> str:
    """Return the statements that migrate from one revision to another, for a person who runs them."""
    if before is not None and is_newer(before):
        raise _newer(before)
    from alembic import command  # noqa: PLC0415 - see the docstring of the module.

    output = StringIO()
    config = _alembic(dialect=engine.value, output=output)
    span = f"{before or BASE}:{revision}"
    if _position(before) <= _position(revision):
        command.upgrade(config, span, sql=True)
    else:
        command.downgrade(config, span, sql=True)
    return output.getvalue()


def _position(revision: str | None) -> int:
    """Return the place of a revision in the order of all. Newer ones are behind those that this version knows."""
    if revision is None or revision == BASE:
        return 0
    return len(REVISIONS) + 1 if is_newer(revision) else REVISIONS.index(revision) + 1


def _alembic(*, output: StringIO | None = None, **attributes: object) -> "Config":
    from alembic.config import Config  # noqa: PLC0415 - see the docstring of the module.

    config = Config(output_buffer=output) if output is not None else Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes.update(attributes)
    return config


def _oldest(config: "Config", revision: str) -> str:
    """Return the oldest schema whose version may use a database with the schema `revision`."""
    from alembic.script import ScriptDirectory  # noqa: PLC0415 - see the docstring of the module.

    script = ScriptDirectory.from_config(config).get_revision(revision)
    oldest: str = getattr(script.module, "oldest", revision)
    return oldest


def _version_in(connection: "sqlalchemy.Connection") -> str | None:
    engine = StorageEngine.SQLITE if connection.dialect.name == "sqlite" else StorageEngine.POSTGRESQL
    return _read_version(lambda sql: connection.exec_driver_sql(sql).fetchone(), engine)


_EXPIRED_WRITER = """
UPDATE writer SET boot = '', holder = ''
WHERE boot <> '' AND abs(extract(epoch FROM clock_timestamp() - renewed_at)) > %(seconds)s
"""
_EXPIRED_NODES = """
DELETE FROM node WHERE renewed_at <= clock_timestamp() - lease_ms * interval '1 ms'
    AND (schema < %(oldest)s OR %(oldest)s = '')
"""


def _refuse_running(connection: "sqlalchemy.Connection", revision: str = "", oldest: str = "") -> list[str]:
    """Raise `GatewayRuns` if a gateway uses the database. Return the names of nodes that may go on.

    Those are nodes whose schema is `oldest` or a later one. For SQLite, the caller holds the lock of the folder.

    A gateway whose lease has expired loses it here. If it was only paused, it cannot go on with the new schema.
    """
    if connection.dialect.name != "postgresql":
        return []
    connection.exec_driver_sql(_EXPIRED_WRITER, {"seconds": LEASE_SECONDS})
    row = connection.exec_driver_sql("SELECT holder FROM writer WHERE boot <> ''").fetchone()
    if row is not None:
        raise GatewayRuns(
            f"The database is in use by a gateway: {describe_holder(row[0])}. Stop it first. "
            f"If it has crashed, try again in {LEASE_SECONDS} seconds. Nothing was changed."
        )
    if not connection.exec_driver_sql("SELECT to_regclass('node') IS NOT NULL").scalar():
        return []
    connection.exec_driver_sql(_EXPIRED_NODES, {"oldest": oldest})
    nodes = connection.exec_driver_sql("SELECT name, version, schema FROM node ORDER BY name").fetchall()
    if nodes and not oldest:
        names = ", ".join(name for name, _, _ in nodes)
        raise GatewayRuns(f"The database is in use by a cluster: {names}. Stop its nodes first. Nothing was changed.")
    if old := [f"{name} (version {version}, schema {schema})" for name, version, schema in nodes if schema < oldest]:
        way = "Stop them first" if oldest == revision else f"Update them to a version with schema {oldest} first"
        raise GatewayRuns(
            f"The running nodes are too old for schema {revision}: {', '.join(old)}. {way}. Nothing was changed."
        )
    return [name for name, _, _ in nodes]


@contextmanager
def read_transaction(storage: StorageSettings) -> "Iterator[sqlalchemy.Connection]":
    """Yield a connection in a transaction that is rolled back. Raises as `current` does."""
    with _explained(storage), _engine(storage, begin="BEGIN").connect() as connection:
        if storage.engine is StorageEngine.POSTGRESQL:
            for timeout in _timeouts(lock=storage.lock_timeout, statement=storage.statement_timeout):
                connection.exec_driver_sql(timeout)
        yield connection


def _timeouts(*, lock: float, statement: float) -> tuple[str, str]:
    """Return the statements that limit how long PostgreSQL may take for each other one of the transaction."""
    return (
        f"SET LOCAL statement_timeout = {round(statement * 1000)}",
        f"SET LOCAL lock_timeout = {round(lock * 1000)}",
    )


@contextmanager
def _transaction(storage: StorageSettings) -> "Iterator[sqlalchemy.Connection]":
    """Yield a connection in a transaction that holds the lock of migrations."""
    with _engine(storage, begin="BEGIN EXCLUSIVE").begin() as connection:
        if storage.engine is StorageEngine.POSTGRESQL:
            # The lock ends with the transaction, so it works behind pgbouncer. Waiting for another migration may take
            # long, and so may a migration.
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {round(storage.lock_timeout * 1000)}")
        yield connection


def _engine(storage: StorageSettings, *, begin: str) -> "sqlalchemy.Engine":
    """Return an engine of SQLAlchemy. `begin` starts a transaction of SQLite, whose driver would start one too late."""
    if missing := missing_extra(storage):
        raise CannotStart(missing)
    if storage.engine is StorageEngine.SQLITE and sqlite3.sqlite_version_info < MIN_SQLITE:
        needed = ".".join(map(str, MIN_SQLITE))
        raise CannotStart(
            f"A SQLite database needs SQLite {needed} or newer, and this Python has {sqlite3.sqlite_version}. "
            "Install Gatehouse with a newer Python."
        )
    from sqlalchemy import NullPool, create_engine, event  # noqa: PLC0415 - see the docstring of the module.

    if storage.engine is StorageEngine.SQLITE:
        _version_of_file(storage, timeout=storage.lock_timeout)  # Raises for a file of another program.
        engine = create_engine("sqlite://", creator=lambda: _create_sqlite(storage), poolclass=NullPool)

        @event.listens_for(engine, "begin")
        def start(connection: "sqlalchemy.Connection") -> None:
            connection.exec_driver_sql(begin)

        return engine
    return create_engine("postgresql+psycopg://", creator=lambda: _open_postgres(storage), poolclass=NullPool)


def _create_sqlite(storage: StorageSettings) -> sqlite3.Connection:
    """Open the file. Creates it if needed, private from the start."""
    path = storage.path
    make_private_directory(path.parent)
    with suppress(FileExistsError):
        os.close(open_private(path, CREATE))
    connection = _open_sqlite(storage, timeout=storage.lock_timeout)
    if path.stat().st_size == 0:  # This has no effect later.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    return connection


def _open_sqlite(storage: StorageSettings, *, timeout: float) -> sqlite3.Connection:
    require_file(storage.path)  # SQLite would follow a link, and might wait for a pipe.
    return sqlite3.connect(storage.path, timeout=timeout, isolation_level=None)


def _open_postgres(storage: StorageSettings) -> "psycopg.Connection[Any]":
    try:
        import psycopg  # noqa: PLC0415 - only PostgreSQL needs it.
    except ImportError:
        raise CannotStart(missing_extra(storage) or "psycopg cannot be imported.") from None
    connection = psycopg.connect(
        psycopg.conninfo.make_conninfo("", **parse_url(storage.url)),
        password=storage.password.reveal() if storage.password else None,
        connect_timeout=math.ceil(storage.connect_timeout),
        fallback_application_name="gatehouse",
        prepare_threshold=None,  # pgbouncer may give each transaction another connection.
    )
    try:
        require_utf8(connection.info.parameter_status("server_encoding"), describe(storage.url))
    except CannotStart:
        connection.close()
        raise
    return connection


@contextmanager
def _explained(storage: StorageSettings) -> Iterator[None]:
    """Raise `CannotStart` with a sentence for what a restart cannot fix, and `OSError` for a database out of reach."""
    try:
        yield
    except _driver_errors() as error:
        original = getattr(error, "orig", None) or error  # SQLAlchemy wraps them.
        if isinstance(original, sqlite3.Error):
            raise _sqlite_trouble(storage.path, original) from error
        raise _postgres_trouble(storage, original) from error
    except OSError as error:
        if storage.engine is not StorageEngine.SQLITE:
            raise
        raise unusable(storage.path, error) from error


def _driver_errors() -> tuple[type[Exception], ...]:
    loaded = (("psycopg", "Error"), ("sqlalchemy.exc", "DBAPIError"))
    return (sqlite3.Error, *(getattr(sys.modules[module], name) for module, name in loaded if module in sys.modules))


def _sqlite_trouble(path: Path, error: sqlite3.Error) -> CannotStart:
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:  # The rest is the extended code.
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return GatewayRuns(f"The database {path} is in use by another process. Stop that one first.")
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return CannotStart(f"The file {path} is damaged, or no SQLite database. Move it away. It was not changed.")
        case _:
            return unusable(path, error)


_REASONS = {
    "25006": "it is read-only, perhaps a standby. Set storage.url to the primary",
    "42501": (
        "its user lacks rights. Set storage.url to the user that owns the tables, or run "
        "`GRANT CREATE ON SCHEMA public TO ...` if there are none yet"
    ),
    "3F000": "there is no schema in which its user may create tables. Create one, or set search_path",
    "42P07": "it already has tables of another program. Set storage.url to a database or a schema of its own",
    "53100": "its disk is full. Make room",
    "57014": "it takes too long to answer. Try again later, or raise storage.statement_timeout",
    "40P01": "another program holds a lock. Stop that program, or try again later",
    "55P03": "another program holds a lock. Stop that program, or try again later",
}
"""Why the tables cannot be read or migrated and what to do, by the code of PostgreSQL's error."""
_BUSY = frozenset({"40P01", "55P03", "57014"})


def _postgres_trouble(storage: StorageSettings, error: Exception) -> Exception:
    code = getattr(error, "sqlstate", None)
    # The rest of the text names the statement.
    reason = str(error).strip().partition("\n")[0].rstrip(".")
    if code in _REASONS:
        kind = TooBusy if code in _BUSY else CannotStart
        return kind(f"Can't use the database: {_REASONS[code]} ({reason}). Nothing was changed.")
    if cause_of(error) is Cause.FORBIDDEN:
        return refusal(describe(storage.url), error)
    if code is None or code.startswith(("08", "57P", "53")):
        return OSError(errno.EAGAIN, f"The database can't be reached: {reason}")
    return CannotStart(f"Can't use the database: {reason}. Nothing was changed.")
