"""Checks of the database: whether it keeps what it has committed, how fast it is, and which schema it has."""

import sqlite3
import statistics
import time
from collections.abc import Iterator
from contextlib import closing

from config import StorageEngine, StorageSettings
from gateway.database import migrate
from gateway.database.postgres import PostgresConnection, cause_of, connection_options, describe, summary
from gateway.doctor.finding import Finding, error, ok, warning
from gateway.doctor.machine import SLOW_FSYNC
from gateway.errors import CannotStart
from gateway.text.plain import count, in_bytes, took

_PROBES = 9
_MAX_CLOCK_SKEW = 120.0
_UNREACHABLE = "Start its server, or check storage.url. Until then, the gateway accepts no messages."
_SHOWN_DAMAGE = 3

_SETTINGS = """SELECT current_setting('fsync'), current_setting('full_page_writes'),
current_setting('synchronous_commit'), pg_is_in_recovery(), current_setting('default_transaction_read_only'),
pg_database_size(current_database()), current_setting('server_version'), current_setting('synchronous_standby_names')"""


def check_database(storage: StorageSettings) -> list[Finding]:
    """Check a database, whether a gateway uses it or not. Blocks. Files have no findings."""
    if storage.engine is StorageEngine.FILES:
        return []
    try:
        revision = migrate.current(storage)
        if revision is None:
            return [ok("database", "It has no tables yet. The first start creates them.")]
        found = _check_sqlite if storage.engine is StorageEngine.SQLITE else _check_postgres
        return [*found(storage, revision), *_check_revision(storage, revision)]
    except CannotStart as failure:
        return [error("database", str(failure), "The gateway won't start until this is fixed.")]
    except OSError as failure:
        return [error("database", f"{failure.strerror or failure}.", _UNREACHABLE)]


def _check_revision(storage: StorageSettings, revision: str) -> Iterator[Finding]:
    if migrate.is_newer(revision):
        message = f"It has schema {revision} of a newer version, and this version ({migrate.HEAD}) may still use it."
        yield warning("database", message, "Update this gateway: the next migration may not allow it any more.")
    elif revision != migrate.HEAD:
        message = f"It has schema {revision}, and this version needs {migrate.HEAD}."
        by_start = storage.migrate == "auto"
        fix = "Nothing to do: the next start migrates it." if by_start else "Run `gatehouse db upgrade`."
        yield warning("database", message, fix)


def _check_sqlite(storage: StorageSettings, revision: str) -> Iterator[Finding]:
    path = storage.path
    with closing(sqlite3.connect(path, timeout=storage.lock_timeout)) as connection:
        try:
            damage = [line for (line,) in connection.execute("PRAGMA integrity_check") if line != "ok"]
        except sqlite3.Error as failure:
            damage = [str(failure)]
    if damage:
        shown = "; ".join(damage[:_SHOWN_DAMAGE])
        yield error("database", f"{path} is damaged: {shown}.", "Stop the gateway, and restore a backup.")
        return
    size = in_bytes(path.stat().st_size)
    yield ok("database", f"SQLite {sqlite3.sqlite_version}, {path}, schema {revision}, {size}, no damage.")


def _check_postgres(storage: StorageSettings, revision: str) -> Iterator[Finding]:
    name = describe(storage.url)
    try:
        with PostgresConnection(storage.url, **connection_options(storage)) as connection:
            found = connection.execute(_SETTINGS).fetchone()
            skew = clock_skew(connection)
            standbys = connection.execute("SELECT count(*) FROM pg_stat_replication").fetchone()[0]
            is_standby = bool(found[3])
            typical = None if is_standby else statistics.median(commit_times(connection))
    except CannotStart:
        raise
    except Exception as failure:  # noqa: BLE001 - a doctor reports every problem of the server.
        yield error("database", f"{name} fails ({summary(failure)}, {cause_of(failure).name}).", _UNREACHABLE)
        return
    fsync, full_pages, synchronous, _, read_only, size, version, synchronous_standbys = found
    replication = f", replicated to {count(standbys, 'standby')}" if standbys else ""
    yield ok(
        "database",
        f"PostgreSQL {version.split()[0]}, {name}, schema {revision}, {in_bytes(size)}, "
        f"synchronous_commit {synchronous}{replication}.",
    )
    if fsync != "on":
        message = "fsync is off on the server, so a power cut can destroy the whole database."
        yield error("database", message, "Set fsync = on in postgresql.conf, and restart the server.")
    if full_pages != "on":
        message = "full_page_writes is off on the server, so a power cut can damage pages."
        yield warning("database", message, "Set full_page_writes = on, unless the file system writes pages whole.")
    if synchronous == "off":
        message = "synchronous_commit is off, so a crash of the server loses messages that were acknowledged."
        yield error("database", message, "Set synchronous_commit to on or local for this database.")
    if standbys and (synchronous == "local" or not synchronous_standbys):
        message = (
            "Its standbys are asynchronous: if one is promoted after a crash of this server, the last messages that "
            "were acknowledged can be lost."
        )
        yield warning("database", message, "Set synchronous_standby_names, and synchronous_commit = on.")
    if is_standby or read_only == "on":
        message = "It is a read-only standby." if is_standby else "default_transaction_read_only is on."
        yield error("database", message, "Set storage.url to a server that can be written.")
    if abs(skew) > _MAX_CLOCK_SKEW:
        message = f"The clock of its server differs by {took(abs(skew))} from the one here."
        yield warning("database", message, "Set both clocks: `timedatectl set-ntp true`.")
    if typical is not None:
        message = f"A commit takes {took(typical)}."
        slow = "Each message waits that long. Check the disk of the server, and the network in between."
        yield ok("database", message) if typical < SLOW_FSYNC else warning("database", message, slow)


def clock_skew(connection: PostgresConnection) -> float:
    """Return by how many seconds the clock of the server is ahead of the one here."""
    before = time.time()
    (now,) = connection.execute("SELECT extract(epoch FROM clock_timestamp())::double precision").fetchone()
    return float(now) - (before + time.time()) / 2


def commit_times(connection: PostgresConnection) -> list[float]:
    """Return how long a few small commits take. They write to the log of the server, and change no row."""
    times = []
    for _ in range(_PROBES):
        started = time.monotonic()
        connection.begin()
        connection.execute("SELECT pg_logical_emit_message(true, 'gatehouse', 'doctor')").fetchall()
        connection.commit()
        times.append(time.monotonic() - started)
    return times
