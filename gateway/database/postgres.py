"""Connections to PostgreSQL by psycopg, each for one thread, and the causes of their errors."""

from __future__ import annotations

import errno
import os
import re
import select
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum, auto
from functools import lru_cache
from math import ceil
from time import monotonic
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar

from config import StorageSettings
from gateway.database.connection import Cursor, Parameters, UnpreparedStatement
from gateway.database.row_statement import RowBatch, RowStatement, text_bytes
from gateway.distribution import Installation
from gateway.errors import CannotStart

if TYPE_CHECKING:
    import psycopg
    from psycopg.abc import Buffer, Transformer
    from psycopg.adapt import PyFormat
    from psycopg.pq.abc import PGresult

T = TypeVar("T")

MIN_VERSION = 15
_CONNECT_TIMEOUT = 5
STATEMENT_TIMEOUT = 30.0
LOCK_TIMEOUT = 5.0
_ANSWER_GRACE = 5.0
"""Seconds that the answer to a statement may take beyond the server's own timeout."""
# https://www.postgresql.org/docs/current/libpq-exec.html: formats, and PGRES_COMMAND_OK, _TUPLES_OK, _PIPELINE_SYNC.
_TEXT, _BINARY = 0, 1
_TUPLES = 2
_UNPLANNED = (b"BEGIN", b"COMMIT", b"ROLLBACK", b"SAVEPOINT", b"RELEASE", b"SET", b"SHOW", b"VACUUM")
"""Statements that gain nothing by being prepared."""
_SUCCESSES = frozenset({1, _TUPLES, 10})
_MIN_ROWS = 3
"""Fewer rows of a statement are sent one by one: they gain more by prepared statements."""
_MAX_ROWS = 2_000
"""Rows that a pipeline collects. An import may have more."""
_KEEPALIVE = {
    # A peer that is gone without a word is noticed within about half a minute. A Unix socket ignores these.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}

_READS = re.compile(r"\s*(SELECT|SHOW)\b", re.IGNORECASE)
_TOKEN = re.compile(r"'(?:[^']|'')*'|::|\?|:([A-Za-z_]\w*)")


@lru_cache(maxsize=1_024)
def translate(sql: str) -> tuple[bytes, tuple[str, ...], bool]:
    """Return `sql` with PostgreSQL's placeholders, the names of its parameters in order, and whether it only reads."""
    names: list[str] = []
    count = 0

    def placeholder(match: re.Match[str]) -> str:
        nonlocal count
        if name := match[1]:
            if name not in names:
                names.append(name)
            return f"${names.index(name) + 1}"
        if match[0] == "?":
            count += 1
            return f"${count}"
        return match[0]  # A string, or a cast.

    statement = _TOKEN.sub(placeholder, sql).encode()
    return statement, tuple(names), _READS.match(sql) is not None


class Cause(Enum):
    """The cause of an error of PostgreSQL. Causes differ where the reaction differs."""

    LOST = auto()
    """The connection is gone. If COMMIT was sent, its outcome is unknown."""
    ROLLED_BACK = auto()
    """Nothing was stored, and the same transaction may succeed at once."""
    FULL = auto()
    READ_ONLY = auto()
    BUSY = auto()
    """A lock or a statement took too long."""
    FORBIDDEN = auto()
    """The password, the rights, or the database itself are not there."""
    FAILED = auto()
    """The server has a problem of its own."""
    WRONG_SCHEMA = auto()
    """A table or a column is missing."""
    CALLER = auto()
    """About one statement, such as a value of the wrong type."""


# https://www.postgresql.org/docs/current/errcodes-appendix.html: a code of five characters, or its class of two.
_CAUSES = {
    "08": Cause.LOST,
    "57P01": Cause.LOST,  # The server shuts down.
    "57P02": Cause.LOST,
    "57P03": Cause.LOST,  # It is starting.
    "57P04": Cause.FORBIDDEN,  # The database was dropped.
    "57P05": Cause.LOST,
    "57": Cause.BUSY,
    "57014": Cause.BUSY,
    "25P03": Cause.LOST,  # Idle in a transaction for too long.
    "25P04": Cause.LOST,
    "25006": Cause.READ_ONLY,
    "40": Cause.ROLLED_BACK,
    "40003": Cause.LOST,  # "statement completion unknown"
    "53100": Cause.FULL,
    "53": Cause.FAILED,
    "55P03": Cause.BUSY,
    "55": Cause.BUSY,
    "28": Cause.FORBIDDEN,
    "3D": Cause.FORBIDDEN,
    "42501": Cause.FORBIDDEN,
    "3F": Cause.WRONG_SCHEMA,
    "42P01": Cause.WRONG_SCHEMA,
    "42703": Cause.WRONG_SCHEMA,
    "58": Cause.FAILED,
    "F0": Cause.FAILED,
    "XX": Cause.FAILED,
}


# libpq gives no code for a connection that failed. In other languages these count as lost, which is retried.
_REFUSALS = tuple(
    (re.compile(pattern), advice)
    for pattern, advice in (
        (
            r"server certificate for .* does not match host name",
            "Set the host in storage.url to a name of the server's certificate",
        ),
        (
            r"root certificate file|certificate verify failed|server certificate",
            "Renew the server's certificate if it has expired, or set sslrootcert to that of its authority",
        ),
        (r"SSL was required", "Turn on TLS in the server, or change sslmode in storage.url"),
        (r"certificate file|private key", "Check sslcert and sslkey in storage.url, and the mode of the key file"),
        (r"invalid (\S+ value|port number)", "Correct this value in storage.url"),
        (r"FATAL: .*does not exist", "Create it, or correct storage.url"),
        (
            r"FATAL: .*(authentication failed|permission denied|not permitted|pg_hba\.conf)|no password supplied",
            "Check the user in storage.url, storage.password, and pg_hba.conf of the server",
        ),
    )
)
"""What the library says if a restart of the server would not help, and what would."""


def cause_of(error: BaseException) -> Cause:
    # psycopg has set no code if the server did not answer. Errors of other libraries have no such attribute.
    code = getattr(error, "sqlstate", "")
    if code is None:
        if not _is_operational(error):
            return Cause.CALLER
        return Cause.FORBIDDEN if _find_refusal(error) else Cause.LOST
    return _CAUSES.get(code) or _CAUSES.get(code[:2]) or Cause.CALLER


def require_utf8(encoding: str | None, name: str) -> None:
    """Raise `CannotStart` for a database that cannot store all texts. People call it `name`."""
    if encoding != "UTF8":
        raise CannotStart(
            f"The database {name} has the encoding {encoding}. "
            "Create it with UTF8, for example with `createdb --encoding UTF8 --template template0`."
        )


def refusal(name: str, error: BaseException) -> CannotStart:
    """Return the sentences for an error whose cause is `Cause.FORBIDDEN`, in the database that people call `name`."""
    reason, advice = _find_refusal(error) or (summary(error), "Check storage.url, and the rights of its user")
    return CannotStart(f"The database {name} can't be used ({reason}). {advice}.")


def _find_refusal(error: BaseException) -> tuple[str, str] | None:
    """Return the line with the refusal and the advice. There is a line for each address that was tried."""
    found = (
        (line, advice) for pattern, advice in _REFUSALS for line in str(error).splitlines() if pattern.search(line)
    )
    return next(found, None)


def _is_operational(error: BaseException) -> bool:
    import psycopg  # noqa: PLC0415 - only gateways with PostgreSQL have it.

    # A statement behind one that failed in the same pipeline was not run. The error of that one has the cause.
    is_aborted = isinstance(error, psycopg.errors.PipelineAborted)
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and not is_aborted


class WrongAssumption(Exception):
    """A statement of a pipeline has changed more or fewer rows than assumed. The transaction must be rolled back."""


class _PostgresCursor:
    """The outcome of a statement, which may have to be fetched from the server yet."""

    __slots__ = ("_connection", "_count", "_rows", "assumed", "is_assumed")

    def __init__(self, connection: PostgresConnection, runs: int) -> None:
        self._connection = connection
        self.assumed = runs
        self._count: int | None = None
        self._rows: Iterator[Any] = iter(())  # Any: as in `Cursor`.
        self.is_assumed = False

    def add(self, result: PGresult, rows: list[Any] | None) -> None:  # Any: as in `Cursor`.
        """Take the result of one run of the statement."""
        if rows is not None:
            self._rows = iter(rows)
        self._count = (self._count or 0) + (len(rows) if rows is not None else result.command_tuples or 0)

    @property
    def rowcount(self) -> int:
        """The number of rows; inside a pipeline it is assumed that each run of the statement changes one row."""
        if self._count is None:
            self.is_assumed = True
            return self.assumed
        return self._count

    @property
    def is_right(self) -> bool:
        """Whether the assumption has turned out right. Call this after the pipeline."""
        return not self.is_assumed or (self._count or 0) == self.assumed

    def fetchone(self) -> Any:  # noqa: ANN401 - as in `Cursor`
        return next(iter(self), None)

    def fetchall(self) -> list[Any]:  # Any: as in `Cursor`.
        return list(self)

    def __iter__(self) -> Iterator[Any]:  # Any: as in `Cursor`.
        if self._count is None:
            self._connection.sync()
        return self._rows


class PostgresConnection:
    """A connection for one thread, in autocommit mode: `begin`, `commit` and `rollback` delimit transactions.

    It uses libpq, by way of psycopg, in pipeline mode: psycopg's own cursors take several times as long for a
    statement. Behind PgBouncer nothing depends on the session of the server, which changes with each transaction.
    """

    def __init__(
        self,
        url: str,
        *,
        password: str | None = None,
        application_name: str = "gatehouse",
        connect_timeout: float = _CONNECT_TIMEOUT,
        statement_timeout: float = STATEMENT_TIMEOUT,
        lock_timeout: float = LOCK_TIMEOUT,
        idle_timeout: float = 0.0,
    ) -> None:
        """Connect. Raises `psycopg.Error`, or `CannotStart` for a malformed URL or a missing library.

        A statement may take any time if `statement_timeout` is 0. Otherwise the connection counts as lost if the
        answer takes much longer, because the server hangs or a pool waits for it. The server rolls back a transaction
        if it hears nothing for `idle_timeout` seconds, unless that is 0.
        """
        timeouts = {"statement_timeout": int(statement_timeout * 1_000), "lock_timeout": int(lock_timeout * 1_000)}
        if idle_timeout:
            timeouts["idle_in_transaction_session_timeout"] = int(idle_timeout * 1_000)
        options = {
            "application_name": application_name,
            "connect_timeout": str(ceil(connect_timeout)),
            "client_encoding": "utf-8",
            **_KEEPALIVE,
            **parse_url(url),
            **({} if password is None else {"password": password}),
        }
        self._begin: tuple[str, ...] = ("BEGIN",)
        settings = " ".join(f"-c {name}={value}" for name, value in timeouts.items())
        try:
            self._connection = _connect({**options, "options": f"{settings} {options.get('options', '')}".strip()})
        except Exception as error:
            if "startup parameter" not in str(error):
                raise
            # PgBouncer accepts no such settings at the connect, so each transaction sets them for itself.
            self._connection = _connect(options)
            self._begin = ("BEGIN", *(f"SET LOCAL {name} = {value}" for name, value in timeouts.items()))
        self._answer_timeout = statement_timeout + _ANSWER_GRACE if statement_timeout else None
        self._libpq = self._connection.pgconn
        self._transformer = _transformer(self._connection)
        self._poll = select.poll()
        self._poll.register(self._libpq.socket, select.POLLIN)
        self._libpq.enter_pipeline_mode()
        self._is_pipelining = False
        self._sent: list[_PostgresCursor | bytes] = []
        """What results are expected for: statements, and the SQL of those that were prepared."""
        self._cursors: list[_PostgresCursor] = []
        self._unsent = RowBatch()
        self._prepared: dict[bytes, bytes] | None = None
        self._names = 0
        self.has_changed = False
        """Whether a statement since `begin` was not a mere query."""
        (process,) = self.execute("SELECT pg_backend_pid()").fetchone()
        if process == self._libpq.backend_pid:  # Otherwise a pool is in between, and the next process may be another.
            self._prepared = {}

    @property
    def is_lost(self) -> bool:
        return self._connection.closed

    @property
    def version(self) -> int:
        """The major version of the server."""
        return self._connection.info.server_version // 10_000

    def execute(self, sql: str, parameters: Parameters = (), /) -> Cursor:
        if self._is_pipelining and isinstance(sql, RowStatement) and not isinstance(parameters, Mapping):
            self.has_changed = True
            if self._unsent.size >= _MAX_ROWS:
                self._send_rows()
            return self._unsent.add(sql, parameters)
        statement, names, is_read = translate(sql)
        self.has_changed |= not is_read
        values = [parameters[name] for name in names] if isinstance(parameters, Mapping) else parameters
        return self._run(statement, [values], can_prepare=not isinstance(sql, UnpreparedStatement))

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> Cursor:  # Any: the types of the columns.
        statement, _, _ = translate(sql)
        listed = list(rows)
        self.has_changed |= bool(listed)
        return self._run(statement, listed)

    def copy_in(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:  # Any: as above.
        """Insert many rows with COPY, which is several times as fast as INSERT. Call it outside a pipeline."""
        self.has_changed = True
        if self.is_lost:
            raise _lost("the connection is closed")
        self._libpq.exit_pipeline_mode()  # COPY is not possible there.
        try:
            with self._connection.cursor().copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN") as copy:
                for row in rows:
                    copy.write_row([value.replace("\0", "\ufffd") if type(value) is str else value for value in row])
        finally:
            if not self.is_lost:
                self._libpq.enter_pipeline_mode()

    def begin_snapshot(self) -> None:
        """Begin a transaction whose queries all see the same moment. It cannot change anything."""
        self._run(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", [()])

    def begin(self) -> None:
        self.has_changed = False
        for statement in self._begin:
            self._run(statement.encode(), [()])

    def commit(self) -> None:
        self._run(b"COMMIT", [()])

    def rollback(self) -> None:
        """Roll back, if the connection still exists."""
        if not self.is_lost:
            self._run(b"ROLLBACK", [()])

    @contextmanager
    def pipeline(self) -> Iterator[None]:
        """Send the statements of the block without waiting for their outcomes, which takes one round trip.

        Each `RowStatement` runs once for many rows, before the next statement of another kind.
        Row counts that the block reads are assumed. Raises `WrongAssumption` at the end if one was wrong. So the work
        of the block is right either way: its caller rolls it back and runs it again without a pipeline.
        """
        self._is_pipelining = True
        self._cursors = []
        try:
            yield
            self._send_rows()
        except BaseException:
            self._is_pipelining = False
            self._unsent.take()
            with suppress(Exception):  # The first error counts.
                self.sync()
            raise
        self._is_pipelining = False
        self.sync()
        if not all(cursor.is_right for cursor in self._cursors):
            raise WrongAssumption

    def sync(self) -> None:
        """Wait for the outcomes of all statements. Raises the first error among them."""
        self._libpq.pipeline_sync()
        sent, self._sent = self._sent, []
        failure: PGresult | None = None
        for each in sent:
            while (result := self._next_result()) is not None:
                if result.status not in _SUCCESSES:
                    if isinstance(each, bytes) and self._prepared is not None:
                        self._prepared.pop(each, None)
                    failure = failure or result
                elif isinstance(each, _PostgresCursor):
                    each.add(result, self._rows(result))
        self._next_result()  # The one of the synchronisation itself.
        if failure is not None:
            raise _error_of(failure)

    def abort(self) -> None:
        """Cut the connection, also from another thread: a statement that waits for its answer fails at once."""
        # The thread may be closing it at the same time.
        with suppress(Exception), socket.socket(fileno=os.dup(self._libpq.socket)) as connection:
            connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(Exception):  # It may be lost, and nothing depends on a farewell.
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send_rows(self) -> None:
        """Send the rows that a pipeline has collected."""
        for group in self._unsent.take():
            if len(group.rows) < _MIN_ROWS:
                cursor = self._run(translate(group.statement)[0], group.rows)
            else:
                # Not prepared: the best plan depends on the number of rows, and on the size of the table.
                cursor = self._run(group.statement.for_arrays.encode(), [group.arrays()], can_prepare=False)
                cursor.assumed = len(group.rows)
            cursor.is_assumed = group.is_counted

    def _run(
        self, statement: bytes, rows: Sequence[Sequence[Any]], *, can_prepare: bool = True
    ) -> _PostgresCursor:  # Any: the types of the columns.
        """Send a statement with each of the rows. Outside a pipeline, wait for the outcome."""
        self._send_rows()
        dumped = [self._dump(row) for row in rows]  # All of them first: one may be invalid.
        if self.is_lost:
            raise _lost("the connection is closed")
        cursor = _PostgresCursor(self, len(rows))
        for values, formats in dumped:
            if self._prepared is None or not can_prepare or statement.startswith(_UNPLANNED):
                self._libpq.send_query_params(statement, values, None, formats, _BINARY)
            else:
                name = self._prepared.get(statement)
                if name is None:
                    self._names += 1
                    name = self._prepared[statement] = b"gatehouse_%d" % self._names
                    self._libpq.send_prepare(name, statement)
                    self._sent.append(statement)
                self._libpq.send_query_prepared(name, values, formats, _BINARY)
            self._sent.append(cursor)
        if self._is_pipelining:
            self._cursors.append(cursor)
        else:
            self.sync()
        return cursor

    def _dump(self, row: Sequence[Any]) -> tuple[list[Buffer | None], list[int]]:  # Any: the types of the columns.
        """Return the parameters as libpq takes them, and their formats. The server finds out their types."""
        values: list[Buffer | None] = []
        formats = [_TEXT] * len(row)
        for at, value in enumerate(row):
            if isinstance(value, str):
                values.append(text_bytes(value))
            elif type(value) is int:
                values.append(b"%d" % value)
            elif isinstance(value, bytes):
                values.append(value)
                formats[at] = _BINARY
            elif value is None:
                values.append(None)
            else:
                values += self._transformer.dump_sequence([value], [_text_format()])
        return values, formats

    def _rows(self, result: PGresult) -> list[Any] | None:  # Any: as in `Cursor`.
        if result.status != _TUPLES:
            return None
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    def _next_result(self) -> PGresult | None:
        """Return the next result; None behind the last one of a statement."""
        deadline = None if self._answer_timeout is None else monotonic() + self._answer_timeout
        while True:
            is_unsent = self._libpq.flush()
            if not self._libpq.is_busy():
                result = self._libpq.get_result()
                if self.is_lost:
                    raise _lost(self._libpq.get_error_message())
                return result
            self._poll.modify(self._libpq.socket, select.POLLIN | (select.POLLOUT if is_unsent else 0))
            wait = None if deadline is None else max(0.0, deadline - monotonic()) * 1_000
            if not self._poll.poll(wait):
                self.close()
                raise _lost("the database does not answer")
            self._libpq.consume_input()


class ReconnectingPostgres:
    """A `Connection` for the reads of one thread. It connects when it is used, and again after it was lost.

    A read that finds the connection lost runs again on a new one, so a restart of the server between two reads is not
    noticed. Raises `OSError` with EAGAIN while the database cannot answer, because callers handle files the same way.
    """

    def __init__(self, connect: Callable[[], PostgresConnection]) -> None:
        self._connect = connect
        self._connection: PostgresConnection | None = None
        self._has_snapshot = False
        self._is_aborted = False

    def execute(self, sql: str, parameters: Parameters = (), /) -> Cursor:
        return self._run(lambda connection: connection.execute(sql, parameters))

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> Cursor:  # Any: the types of the columns.
        listed = list(rows)
        return self._run(lambda connection: connection.executemany(sql, listed))

    def begin_snapshot(self) -> None:
        """Let all later queries see the same moment, until the connection is closed or lost."""
        self._run(PostgresConnection.begin_snapshot)
        self._has_snapshot = True

    def abort(self) -> None:
        """Let all reads fail from now on, also the one that waits for its answer. Call it from any thread."""
        self._is_aborted = True
        if (connection := self._connection) is not None:
            connection.abort()

    def close(self) -> None:
        self._has_snapshot = False
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _run(self, read: Callable[[PostgresConnection], T]) -> T:
        if self._is_aborted:
            raise OSError(errno.EAGAIN, "the database can't be reached")
        # Another connection would see another moment, so a lost snapshot is reported.
        may_retry = self._connection is not None and not self._has_snapshot
        try:
            if self._connection is None:
                self._connection = self._connect()
            return read(self._connection)
        except Exception as error:
            is_lost = self._connection is not None and self._connection.is_lost
            if is_lost:
                self.close()
            match cause_of(error):
                case Cause.CALLER | Cause.WRONG_SCHEMA:
                    raise
                case _ if is_lost and may_retry:
                    pass
                case Cause.LOST:
                    raise OSError(errno.EAGAIN, "the database can't be reached") from error
                case _:
                    raise OSError(errno.EAGAIN, f"the database refuses ({summary(error)})") from error
        return self._run(read)


class ConnectionOptions(TypedDict, total=False):
    """The options of `PostgresConnection` that settings have."""

    password: str | None
    connect_timeout: float
    statement_timeout: float
    lock_timeout: float


def connection_options(storage: StorageSettings) -> ConnectionOptions:
    return ConnectionOptions(
        password=None if storage.password is None else storage.password.reveal(),
        connect_timeout=storage.connect_timeout,
        statement_timeout=storage.statement_timeout,
        lock_timeout=storage.lock_timeout,
    )


def connection_parameters(storage: StorageSettings) -> dict[str, str]:
    """Return the parameters of libpq for a connection that no statement timeout ends."""
    password = {} if storage.password is None else {"password": storage.password.reveal()}
    timeout = {"connect_timeout": str(ceil(storage.connect_timeout)), "application_name": "gatehouse"}
    return {**timeout, **_KEEPALIVE, **parse_url(storage.url), **password}


def parse_url(url: str) -> dict[str, str]:
    """Return the parts of a URL. Of several hosts, the one that accepts writes is used unless the URL says otherwise.

    Raises `CannotStart` if the URL is malformed, or PostgreSQL's library is missing.
    """
    try:
        from psycopg import ProgrammingError, conninfo  # noqa: PLC0415 - only gateways with PostgreSQL have it.
    except ImportError as error:
        raise CannotStart(
            f"storage.url names a PostgreSQL database, but its library can't be loaded ({error}). "
            f"Install it: {Installation.present().extra_command('postgres')}"
        ) from error
    try:
        parts = conninfo.conninfo_to_dict(url)
    except ProgrammingError as error:  # Its text may contain the password.
        raise CannotStart(
            "storage.url is not a valid PostgreSQL URL. It looks like postgresql://user@host:5432/database."
        ) from error
    given = {name: str(value) for name, value in parts.items() if value is not None}
    return {"target_session_attrs": "read-write", **given} if "," in given.get("host", "") else given


def describe(url: str) -> str:
    """Return the database of a URL for people, without its password."""
    parts = parse_url(url)
    hosts, ports = parts.get("host", "this machine").split(","), parts.get("port", "").split(",")
    if len(ports) < len(hosts):  # One port is for all hosts.
        ports = ports * len(hosts)
    places = [f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=False)]
    return f"{parts.get('dbname', 'the default database')} on {' or '.join(places)}"


def summary(error: BaseException) -> str:
    """Return the first line of an error. The others can contain values of rows."""
    return str(error).strip().partition("\n")[0]


# Only gateways with PostgreSQL have psycopg, so it is imported where it is used.


def _connect(options: dict[str, str]) -> psycopg.Connection[Any]:  # Any: as in `Cursor`.
    import psycopg  # noqa: PLC0415

    return psycopg.connect("", autocommit=True, **options)  # type: ignore[arg-type]  # Options of libpq.


def _transformer(connection: psycopg.Connection[Any]) -> Transformer:  # Any: as in `Cursor`.
    from psycopg import adapt  # noqa: PLC0415

    return adapt.Transformer(connection)


def _text_format() -> PyFormat:
    from psycopg.adapt import PyFormat  # noqa: PLC0415

    return PyFormat.TEXT


def _error_of(result: PGresult) -> psycopg.Error:
    from psycopg.errors import error_from_result  # noqa: PLC0415

    return error_from_result(result)


def _lost(reason: str) -> psycopg.OperationalError:
    from psycopg import OperationalError  # noqa: PLC0415

    return OperationalError(reason)
