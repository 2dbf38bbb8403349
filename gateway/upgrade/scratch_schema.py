"""A copy of a PostgreSQL database for a rehearsal: a schema of its own in the same database, dropped at the end.

The migrations create its tables, up to the revision of the original. Then the server copies the rows, as of one moment.
Gateways that use the original go on. A session lock tells others that the rehearsal is alive.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from urllib.parse import quote
from uuid import uuid4

from config import StorageSettings
from gateway.aio import finish_before_cancel
from gateway.database import migrate
from gateway.database.postgres import PostgresConnection, connection_options, parse_url
from gateway.errors import Refused

_NAME = re.compile(rf"{migrate.REHEARSAL_SCHEMA}[0-9a-f]{{32}}")
_SETTINGS_OF_GATEWAYS = frozenset(
    # Who uses the original, and the versions of its schema, which the migrations write themselves.
    ("alembic_version", "compatibility", "writer", "node", "shard", "shard_position", "post", "fact_version")
)
_FILES = "file"
"""The table of attachments, which have no format of ours and may be large."""
_REFERENCED_FIRST = ("repo", "session")
_SEARCH_INDEX = "entry_search"
_OTHER_SCHEMA = (
    "The connection does not use the schema of the copy, because a connection pool is in between. "
    "Name the server itself in storage.url for the rehearsal. Nothing was changed."
)


def schema_bytes(storage: StorageSettings) -> int:
    """Return how many bytes the tables take that a rehearsal copies. Raises `Refused` if it may not copy them."""
    with closing(_connect(storage)) as connection:
        query = "SELECT current_database(), has_database_privilege(current_database(), 'CREATE'), current_user"
        database, may_create, user = connection.execute(query).fetchone()
        if not may_create:
            raise Refused(
                f"The user {user} may not create a schema in the database {database}, so the migration of the database "
                "and the start could not be rehearsed. Allow it for the rehearsal: "
                f'GRANT CREATE ON DATABASE "{database}" TO "{user}"; '
                "or restore a copy of the database elsewhere, and rehearse with that one."
            )
        tables = (
            "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = current_schema() AND c.relkind = 'r' AND c.relname <> ?"
        )
        (size,) = connection.execute(tables, (_FILES,)).fetchone()
        return int(size)


@asynccontextmanager
async def copied_schema(storage: StorageSettings) -> AsyncIterator[StorageSettings]:
    """Copy the schema of a database, and yield the settings for the copy. Drops it at the end."""
    name = f"{migrate.REHEARSAL_SCHEMA}{uuid4().hex}"
    parts = parse_url(storage.url)
    bare, _, query = storage.url.partition("?")
    others = [option for option in query.split("&") if option and not option.startswith("options=")]
    chosen = f"{parts.get('options', '')} -csearch_path={name}".strip()
    url = f"{bare}?{'&'.join([*others, f'options={quote(chosen)}'])}"
    copy = StorageSettings(url=url, password=storage.password, connect_timeout=storage.connect_timeout)
    async with AsyncExitStack() as stack:
        owner = stack.enter_context(closing(await asyncio.to_thread(_connect, storage)))
        await asyncio.to_thread(drop_leftovers, owner)
        stack.push_async_callback(asyncio.to_thread, _drop, owner, name)
        await finish_before_cancel(asyncio.to_thread(_create, owner, storage, copy, name))
        yield copy


def drop_leftovers(connection: PostgresConnection) -> list[str]:
    """Drop the copies of killed rehearsals, and return their names."""
    query = (
        "SELECT nspname FROM pg_namespace "
        "WHERE starts_with(nspname, ?) AND pg_has_role(current_user, nspowner, 'MEMBER')"
    )
    found = [name for (name,) in connection.execute(query, (migrate.REHEARSAL_SCHEMA,)).fetchall()]
    dropped = []
    for name in filter(_NAME.fullmatch, found):
        if connection.execute("SELECT pg_try_advisory_lock(hashtextextended(?, 1))", (name,)).fetchone()[0]:
            connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE").fetchall()
            connection.execute("SELECT pg_advisory_unlock(hashtextextended(?, 1))", (name,)).fetchall()
            dropped.append(name)
    return dropped


def _create(owner: PostgresConnection, storage: StorageSettings, copy: StorageSettings, name: str) -> None:
    (original,) = owner.execute("SELECT current_schema()").fetchone()
    revision = migrate.current(storage)
    owner.execute("SELECT pg_advisory_lock(hashtextextended(?, 1))", (name,)).fetchall()
    owner.execute(f"CREATE SCHEMA {name}").fetchall()
    _require_schema(copy, name)
    migrate.upgrade(copy, revision or migrate.HEAD)
    with closing(_connect(copy)) as connection:
        _require_here(connection, name)
        # The server builds an index of a full table several times as fast as one that grows with it.
        (index,) = connection.execute(f"SELECT pg_get_indexdef(to_regclass('{_SEARCH_INDEX}'))").fetchone()
        if index is not None:
            connection.execute(f"DROP INDEX {_SEARCH_INDEX}").fetchall()
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ").fetchall()
        query = (
            "SELECT c.relname, string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum), "
            "coalesce(string_agg(a.attname, ' ') FILTER (WHERE a.attidentity <> ''), '') "
            "FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "
            "WHERE c.relnamespace = ?::regnamespace AND c.relkind = 'r' GROUP BY c.relname"
        )
        tables = [row for row in connection.execute(query, (name,)).fetchall() if row[0] not in _SETTINGS_OF_GATEWAYS]
        tables.sort(key=lambda row: (*(row[0] != first for first in _REFERENCED_FIRST), row[0]))
        for table, columns, counted in tables:
            if table == _FILES:
                continue
            rows = f'SELECT {columns} FROM "{original}".{table}'  # noqa: S608 - names from the catalog.
            connection.execute(f"INSERT INTO {name}.{table} ({columns}) OVERRIDING SYSTEM VALUE {rows}").fetchall()
            for column in counted.split():
                connection.execute(
                    f"SELECT setval(pg_get_serial_sequence('{name}.{table}', '{column}'), "  # noqa: S608 - as above.
                    f"greatest(max({column}), 1), max({column}) IS NOT NULL) FROM {name}.{table}"
                ).fetchall()
        connection.commit()
        if index is not None:
            connection.execute(str(index)).fetchall()


def _require_schema(copy: StorageSettings, name: str) -> None:
    try:
        connection = _connect(copy)
    except Exception as error:
        # psycopg is imported only where it is used, and its error has no code here.
        if "startup parameter" in str(error):  # PgBouncer refuses the choice of a schema.
            raise Refused(_OTHER_SCHEMA) from error
        raise
    with closing(connection):
        _require_here(connection, name)


def _require_here(connection: PostgresConnection, name: str) -> None:
    """Raise `Refused` if a connection does not use the copy. A connection pool may ignore the choice of the schema."""
    if connection.execute("SELECT current_schema()").fetchone() != (name,):
        raise Refused(_OTHER_SCHEMA)


def _drop(owner: PostgresConnection, name: str) -> None:
    owner.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE").fetchall()


def _connect(storage: StorageSettings) -> PostgresConnection:
    # Copying a table is one statement, which may take long.
    options = connection_options(storage)
    options["statement_timeout"] = 0.0
    return PostgresConnection(storage.url, application_name="gatehouse upgrade --check", **options)
