"""Compares a database with the newest schema, for `gatehouse db check`.

The schema is created a second time, in memory or as temporary tables, and the catalogs of both are compared. So the
database itself decides whether two definitions are the same.
"""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from sqlalchemy import NullPool, create_engine, text

from config import StorageEngine, StorageSettings
from gateway.database import migrate
from gateway.database.schema import metadata
from gateway.database.views import VIEWS

if TYPE_CHECKING:
    from sqlalchemy import Connection

Definitions = Mapping[str, str]
"""The definition of each part of the schema, by its name for people."""


def differences(storage: StorageSettings) -> list[str]:
    """Return a sentence for each difference. Changes nothing, and may run while a gateway uses PostgreSQL."""
    if storage.engine is StorageEngine.SQLITE:
        with migrate.read_transaction(storage) as connection:
            found = dict(_describe_sqlite(connection))
        with create_engine("sqlite://", poolclass=NullPool).begin() as connection:
            _create(connection)
            wanted = dict(_describe_sqlite(connection))
    else:
        with migrate.read_transaction(storage) as connection:
            found = dict(_describe_postgres(connection))
            # Temporary tables hide those of the same names until the transaction is rolled back.
            connection.exec_driver_sql("SET LOCAL search_path TO pg_temp")
            _create(connection)
            wanted = dict(_describe_postgres(connection))
    return list(_compare(found, wanted))


def _compare(found: Definitions, wanted: Definitions) -> Iterator[str]:
    for name in sorted({*found, *wanted}):
        if name not in found:
            yield f"The {name} is missing."
        elif name not in wanted:
            yield f"The {name} is not part of the schema."
        elif found[name] != wanted[name]:
            yield f"The {name} is `{found[name]}`, and should be `{wanted[name]}`."


def _create(connection: "Connection") -> None:
    metadata.create_all(connection, checkfirst=False)
    for statement in VIEWS[connection.dialect.name].values():
        connection.execute(text(statement.replace(":", r"\:")))


def _describe_sqlite(connection: "Connection") -> Iterator[tuple[str, str]]:
    for table in metadata.tables:
        for _, name, kind, is_required, default, key, _ in connection.exec_driver_sql(f"PRAGMA table_xinfo({table})"):
            facts = [kind, "NOT NULL" if is_required else "", f"DEFAULT {default}" if default is not None else ""]
            yield f"column {table}.{name}", " ".join(filter(None, [*facts, f"PRIMARY KEY {key}" if key else ""]))
        for row in connection.exec_driver_sql(f"PRAGMA foreign_key_list({table})"):
            _, _, other, column, target, on_update, on_delete, _ = row
            yield f"foreign key {table}.{column}", f"{other}({target}) ON UPDATE {on_update} ON DELETE {on_delete}"
        for _, index, _, origin, _ in connection.exec_driver_sql(f"PRAGMA index_list({table})").fetchall():
            if origin == "u":  # Of a UNIQUE constraint, whose name SQLite does not keep.
                columns = ", ".join(row[2] for row in connection.exec_driver_sql(f"PRAGMA index_info({index})"))
                yield f"constraint UNIQUE ({columns}) of {table}", "UNIQUE"
    objects = "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE type IN ('index', 'view') AND sql IS NOT NULL"
    for kind, name, table, statement in connection.exec_driver_sql(objects):
        if table in metadata.tables or name in VIEWS["sqlite"]:
            yield f"{kind} {name}", " ".join(statement.split())


_POSTGRES_COLUMNS = """
SELECT format('column %%s.%%s', c.relname, a.attname),
    concat_ws(' ', format_type(a.atttypid, a.atttypmod),
        CASE WHEN l.collname <> 'default' THEN 'COLLATE ' || l.collname END,
        CASE WHEN a.attnotnull THEN 'NOT NULL' END, 'DEFAULT ' || pg_get_expr(d.adbin, d.adrelid),
        CASE WHEN a.attidentity <> '' THEN 'IDENTITY' END)
FROM pg_class c
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
LEFT JOIN pg_collation l ON l.oid = a.attcollation
WHERE c.oid = to_regclass(%(table)s)
"""
# PostgreSQL 18 lists NOT NULL as constraints, earlier versions do not.
_POSTGRES_CONSTRAINTS = """
SELECT format('constraint %%s of %%s', k.conname, c.relname), pg_get_constraintdef(k.oid)
FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
WHERE c.oid = to_regclass(%(table)s) AND k.contype <> 'n'
"""
# The index of the search is missing where its extension is. That of the shards needs a function that temporary tables
# cannot have.
_POSTGRES_INDEXES = """
SELECT 'index ' || i.relname, pg_get_indexdef(i.oid)
FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid
WHERE x.indrelid = to_regclass(%(table)s) AND i.relname NOT IN ('entry_search', 'session_shard')
"""


def _describe_postgres(connection: "Connection") -> Iterator[tuple[str, str]]:
    for table in metadata.tables:
        for query in (_POSTGRES_COLUMNS, _POSTGRES_CONSTRAINTS, _POSTGRES_INDEXES):
            for name, definition in connection.exec_driver_sql(query, {"table": table}):
                # An index is shown with the schema of its table.
                yield name, re.sub(r" ON \S+\.(\w+) USING ", r" ON \1 USING ", definition)
    for view in VIEWS["postgresql"]:
        query = "SELECT pg_get_viewdef(to_regclass(%(view)s))"
        definition = connection.exec_driver_sql(query, {"view": view}).scalar()
        if definition is not None:
            yield f"view {view}", " ".join(definition.split())
