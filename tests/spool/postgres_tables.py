"""Databases with the tables of the spool in PostgreSQL."""

import psycopg
from psycopg.sql import SQL, Identifier

from config import StorageSettings
from gateway.database.migrate import upgrade
from gateway.spool.copies import TABLES


def create_tables(url: str) -> None:
    upgrade(StorageSettings(url=url))


def copy_tables(source: str, target: str) -> None:
    """Copy what other connections see in `source` to the empty tables of `target`."""
    with psycopg.connect(source) as reader, psycopg.connect(target) as writer:
        for table, columns in TABLES.items():
            name, names = Identifier(table), SQL(", ").join(map(Identifier, columns))
            rows = reader.execute(SQL("SELECT {} FROM {}").format(names, name)).fetchall()
            values = SQL(", ").join([SQL("%s")] * len(columns))
            insert = SQL("INSERT INTO {} ({}) VALUES ({})").format(name, names, values)
            writer.cursor().executemany(insert, rows)
            if table in {"seen", "inbox", "outbox"}:
                last = "SELECT setval(pg_get_serial_sequence({}, 'id'), max(id)) FROM {}"
                writer.execute(SQL(last).format(table, name))
