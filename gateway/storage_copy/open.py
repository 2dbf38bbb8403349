"""Opens the source and the target of a copy, and keeps gateways away from both during the copy."""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from config import StorageEngine, StorageSettings
from config.files import make_private_directory
from gateway.data_dir import UNFINISHED_COPY_FILE, DataDirLock, unusable
from gateway.database.lease import Holder
from gateway.database.migrate import HEAD, current, ensure_current, is_newer
from gateway.database.postgres import PostgresConnection, connection_options, describe, summary
from gateway.database.sqlite import SqliteReader, create_file, open_writer
from gateway.errors import CannotStart, Refused
from gateway.private_files import read_private
from gateway.storage_copy.contents import UNFINISHED_COPY, StorageReader, StorageWriter
from gateway.storage_copy.database import (
    BATCH_ENTRIES,
    DatabaseReader,
    DatabaseWriter,
    HeldLease,
    PostgresTarget,
    RowTarget,
    SqliteTarget,
)
from gateway.storage_copy.files import FileReader, FileWriter


@contextmanager
def open_copy_source(storage: StorageSettings, data_dir: Path) -> Iterator[StorageReader]:
    """Open a storage as the source of a copy. The caller holds the data directory.

    Raises `CannotStart` if a gateway uses it, or it cannot be used.
    """
    with ExitStack() as stack:
        if storage.engine is StorageEngine.FILES:
            yield stack.enter_context(closing(FileReader(data_dir)))
            return
        if storage.engine is StorageEngine.SQLITE:
            if not storage.path.exists():
                raise CannotStart(f"The database {storage.path} does not exist, so there is nothing to copy.")
            _lock_folder(stack, storage.path.parent, data_dir)
        found = current(storage)
        if is_newer(found):
            raise CannotStart(
                f"The database has schema {found} of a newer version, and this version knows {HEAD}. Run the command "
                "with the newer version, so that it copies everything. Nothing was changed."
            )
        if found != HEAD:
            raise CannotStart(
                f"The database has {f'schema {found}' if found else 'no tables'}, and this version needs {HEAD}. "
                "Run `gatehouse db upgrade` first. Nothing was changed."
            )
        if storage.engine is StorageEngine.SQLITE:
            reader = stack.enter_context(closing(SqliteReader(storage.path)))
            reader.begin_snapshot()
            yield DatabaseReader(reader, identity_of(storage, data_dir))
        else:
            _hold_lease(stack, storage, data_dir)
            connection = stack.enter_context(closing(_connect(storage)))
            connection.begin_snapshot()
            yield DatabaseReader(connection, identity_of(storage, data_dir))


@contextmanager
def open_copy_target(
    storage: StorageSettings, data_dir: Path, *, batch_entries: int = BATCH_ENTRIES
) -> Iterator[StorageWriter]:
    """Open a storage as the target of a copy, and create its tables. The caller holds the data directory.

    A transaction has at least `batch_entries` entries.
    """
    target: RowTarget
    with ExitStack() as stack:
        match storage.engine:
            case StorageEngine.FILES:
                yield FileWriter(data_dir)
            case StorageEngine.SQLITE:
                try:
                    make_private_directory(storage.path.parent)
                except OSError as error:
                    raise unusable(storage.path.parent, error) from error
                _lock_folder(stack, storage.path.parent, data_dir)
                create_file(storage.path)
                ensure_current(storage)
                target = SqliteTarget(stack.enter_context(closing(open_writer(storage.path))))
                yield DatabaseWriter(target, identity_of(storage, data_dir), batch_entries=batch_entries)
            case _:
                ensure_current(storage)
                lease = _hold_lease(stack, storage, data_dir)
                connection = stack.enter_context(closing(_connect(storage)))
                target = PostgresTarget(connection, lease.boot)
                yield DatabaseWriter(target, identity_of(storage, data_dir), batch_entries=batch_entries)


def identity_of(storage: StorageSettings, data_dir: Path) -> str:
    """Return the name of a storage for people. It has no password."""
    match storage.engine:
        case StorageEngine.FILES:
            return f"files:{data_dir.resolve()}"
        case StorageEngine.SQLITE:
            return f"sqlite:{storage.path.resolve()}"
        case _:
            return f"postgresql:{describe(storage.url)}"


def require_complete_copy(storage: StorageSettings, data_dir: Path, facts: Mapping[str, str]) -> None:
    """Raise `CannotStart` if a storage is an unfinished copy. `facts` are those of a database."""
    source = facts.get(UNFINISHED_COPY)
    if storage.engine is StorageEngine.FILES:
        mark = data_dir / UNFINISHED_COPY_FILE
        source = read_private(mark).decode(errors="replace") if mark.exists() else None
    if source is not None:
        raise CannotStart(
            f"{identity_of(storage, data_dir)} is an unfinished copy of {source}. Run `gatehouse migrate` or "
            "`gatehouse restore` again to finish it, or set storage.url to another storage."
        )


@contextmanager
def explained() -> Iterator[None]:
    """Raise `Refused` with a sentence for errors of the databases. The copy can be continued after them."""
    try:
        yield
    except BrokenPipeError:  # The reader of our output has left.
        raise
    except Exception as error:
        # The errors of psycopg have this attribute. It is imported only if PostgreSQL is used.
        if not isinstance(error, sqlite3.Error | OSError) and not hasattr(error, "sqlstate"):
            raise
        raise Refused(
            f"The copy has stopped: {summary(error)}. Run the command again to continue it. The source is unchanged."
        ) from error


def _lock_folder(stack: ExitStack, folder: Path, data_dir: Path) -> None:
    if folder.resolve() != data_dir.resolve():
        stack.enter_context(DataDirLock(folder))


def _hold_lease(stack: ExitStack, storage: StorageSettings, data_dir: Path) -> HeldLease:
    connection = stack.enter_context(closing(_connect(storage)))
    return stack.enter_context(HeldLease(connection, Holder.here(data_dir)))


def _connect(storage: StorageSettings) -> PostgresConnection:
    # A statement about a whole table may take long.
    options = connection_options(storage)
    options["statement_timeout"] = 0.0
    return PostgresConnection(storage.url, **options)
