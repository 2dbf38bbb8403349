"""Migrates the database: which schema it has, whether that is the newest one, and the way there and back.

Alembic and SQLAlchemy are imported only when something has to be migrated: the daemon starts without them. A migration
is one transaction under a lock. If the process dies in the middle, the database has the old schema and all its data.
"""

import errno
import math
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import structlog

from config import MigrateMode, StorageEngine, StorageSettings
from config.files import make_private_directory
from gateway.data_dir import unusable
from gateway.database.lease import LEASE_SECONDS, describe_holder
from gateway.database.postgres import Cause, cause_of, describe, parse_url, refusal
from gateway.distribution import Installation
from gateway.errors import CannotStart
from gateway.private_files import CREATE, open_private, require_file

if TYPE_CHECKING:
    import psycopg
    import sqlalchemy
    from alembic.config import Config

log: structlog.stdlib.BoundLogger = structlog.get_logger()

REVISIONS = ("0001", "0002")
"""The migrations, in order. Each is a file in `migrations/versions/`."""
HEAD = REVISIONS[-1]
BASE = "base"
"""Stands for a database without a schema."""

LOCK = 7_147_042_386_119_201
"""The advisory lock of PostgreSQL that a migration holds. Any number that no other program uses would do."""
MIN_SQLITE = (3, 38)
"""The first version of SQLite with the operator `->`, which the views use."""
_READ_TIMEOUT = 2.0


class ForeignDatabase(CannotStart):
    """The database has tables of another program."""


class NewerSchema(CannotStart):
    """A newer version has migrated the database."""


class GatewayRuns(CannotStart):
    """A running gateway uses the database."""


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
    """Bring the database to the newest schema, or raise `CannotStart`. The daemon calls this when it starts."""
    found = current(storage)
    if found == HEAD:
        return
    if storage.migrate is MigrateMode.MANUAL:
        state = f"has schema {found}, and this version needs {HEAD}" if found else "has no tables yet"
        raise CannotStart(
            f'The database {state}. Run `gatehouse db upgrade`, or set storage.migrate to "auto". Nothing was changed.'
        )
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

    Raises `NewerSchema` or `ForeignDatabase` if this version cannot use it.
    """
    with _explained(storage):
        if storage.engine is StorageEngine.SQLITE:
            return _version_of_file(storage, timeout=_READ_TIMEOUT)
        with _open_postgres(storage) as connection:
            for timeout in _timeouts(storage):
                connection.execute(timeout.encode())
            found = connection.execute("SELECT to_regclass('alembic_version') IS NOT NULL").fetchone()
            has_version = found is not None and found[0]
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone() if has_version else None
    return _checked(row[0] if row else None)


def _version_of_file(storage: StorageSettings, *, timeout: float) -> str | None:
    if not storage.path.exists():
        return None
    with closing(_open_sqlite(storage, timeout=timeout)) as connection:
        tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        names = {name for (name,) in connection.execute(tables)}
        if names and "alembic_version" not in names:
            raise ForeignDatabase(f"{storage.path} is a database of another program. Set storage.url to another file.")
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone() if names else None
    return _checked(row[0] if row else None)


def _checked(revision: str | None) -> str | None:
    """Return a revision that this version knows."""
    if revision is None or revision in REVISIONS:
        return revision
    if revision.isdecimal() and revision > HEAD:
        raise NewerSchema(
            f"The database was migrated by a newer Gatehouse (schema {revision}, this version knows {HEAD}). Start the "
            f"newer version, or run `gatehouse db downgrade {HEAD}` with it. Nothing was changed."
        )
    raise ForeignDatabase(
        f"The table alembic_version in the database belongs to another program (its revision is {revision}). "
        "Set storage.url to a database or a schema of its own."
    )


def upgrade(storage: StorageSettings, revision: str = HEAD) -> str | None:
    """Migrate up to `revision`, and return the revision before. Does nothing if the database is already there.

    Of two upgrades at the same time, the second one waits, and then finds nothing to do.
    """
    with _explained(storage), _transaction(storage) as connection:
        before = _version_in(connection)
        if _position(before) >= _position(revision):
            return before
        if before is not None:
            _refuse_running(connection)
        from alembic import command  # noqa: PLC0415 - see the docstring of the module.

        command.upgrade(_alembic(connection=connection), revision)
    log.info("database_migrated", since=before or BASE, to=revision)
    return before


def downgrade(storage: StorageSettings, revision: str) -> str | None:
    """Migrate down to `revision`, and return the revision before. `BASE` deletes all data."""
    with _explained(storage), _transaction(storage) as connection:
        before = _version_in(connection)
        if _position(before) <= _position(revision):
            return before
        _refuse_running(connection)
        from alembic import command  # noqa: PLC0415 - see the docstring of the module.

        command.downgrade(_alembic(connection=connection), revision)
    log.info("database_migrated", since=before or BASE, to=revision)
    return before


def sql(engine: StorageEngine, before: str | None, revision: str) -> str:
    """Return the statements that migrate from one revision to another, for a person who runs them."""
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
    return 0 if revision in {None, BASE} else REVISIONS.index(str(revision)) + 1


def _alembic(*, output: StringIO | None = None, **attributes: object) -> "Config":
    from alembic.config import Config  # noqa: PLC0415 - see the docstring of the module.

    config = Config(output_buffer=output) if output is not None else Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes.update(attributes)
    return config


def _version_in(connection: "sqlalchemy.Connection") -> str | None:
    from alembic.runtime.migration import MigrationContext  # noqa: PLC0415 - see the docstring of the module.

    return _checked(MigrationContext.configure(connection).get_current_revision())


def _refuse_running(connection: "sqlalchemy.Connection") -> None:
    """Raise `GatewayRuns` if a gateway holds the lease. For SQLite, the caller holds the lock of the folder instead."""
    if connection.dialect.name != "postgresql":
        return
    lease = "SELECT holder, abs(extract(epoch FROM clock_timestamp() - renewed_at)) FROM writer WHERE boot <> ''"
    row = connection.exec_driver_sql(lease).fetchone()
    if row is not None and row[1] <= LEASE_SECONDS:
        raise GatewayRuns(
            f"The database is in use by a gateway: {describe_holder(row[0])}. Stop it first. "
            f"If it has crashed, try again in {LEASE_SECONDS} seconds. Nothing was changed."
        )


@contextmanager
def read_transaction(storage: StorageSettings) -> "Iterator[sqlalchemy.Connection]":
    """Yield a connection in a transaction that is rolled back. Raises as `current` does."""
    with _explained(storage), _engine(storage, begin="BEGIN").connect() as connection:
        if storage.engine is StorageEngine.POSTGRESQL:
            for timeout in _timeouts(storage):
                connection.exec_driver_sql(timeout)
        yield connection


def _timeouts(storage: StorageSettings) -> tuple[str, str]:
    """Return the statements that limit how long PostgreSQL may take for each other one of the transaction."""
    return (
        f"SET LOCAL statement_timeout = {round(storage.statement_timeout * 1000)}",
        f"SET LOCAL lock_timeout = {round(storage.lock_timeout * 1000)}",
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
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")
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
    return psycopg.connect(
        psycopg.conninfo.make_conninfo("", **parse_url(storage.url)),
        password=storage.password.reveal() if storage.password else None,
        connect_timeout=math.ceil(storage.connect_timeout),
        fallback_application_name="gatehouse",
        prepare_threshold=None,  # pgbouncer may give each transaction another connection.
    )


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
    "42501": "its user may not create tables. Run `GRANT CREATE ON SCHEMA public TO ...`, or make it the owner",
    "3F000": "there is no schema in which its user may create tables. Create one, or set search_path",
    "42P07": "it already has tables of another program. Set storage.url to a database or a schema of its own",
    "53100": "its disk is full. Make room",
    "57014": "it takes too long to answer. Try again later, or raise storage.statement_timeout",
    "55P03": "another program holds a lock. Stop that program, or try again later",
}
"""Why the tables cannot be read or migrated and what to do, by the code of PostgreSQL's error."""


def _postgres_trouble(storage: StorageSettings, error: Exception) -> Exception:
    code = getattr(error, "sqlstate", None)
    # The rest of the text names the statement.
    reason = str(error).strip().partition("\n")[0].rstrip(".")
    if code in _REASONS:
        return CannotStart(f"Can't use the database: {_REASONS[code]} ({reason}). Nothing was changed.")
    if cause_of(error) is Cause.FORBIDDEN:
        return refusal(describe(storage.url), error)
    if code is None or code.startswith(("08", "57P", "53")):
        return OSError(errno.EAGAIN, f"The database can't be reached: {reason}")
    return CannotStart(f"Can't use the database: {reason}. Nothing was changed.")
