"""The shared storage of files: the nodes of a cluster put files there, and fetch those that another node has put.

It is a table of the PostgreSQL database, or an S3 bucket. The disk of each node has copies. A `ref` is "folder/name",
as in the `FileStore`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Protocol, TypeVar
from urllib.parse import quote, unquote

import structlog
from msgspec import Struct

from config import FileSettings, FileSharing, Settings
from gateway.aio import in_daemon_thread
from gateway.database.postgres import (
    Cause,
    PostgresConnection,
    cause_of,
    connection_options,
    describe,
    summary,
)
from gateway.distribution import Installation
from gateway.errors import CannotStart

if TYPE_CHECKING:
    from obstore.store import S3Store

T = TypeVar("T")

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_PART_SIZE = 1 << 20
_MAX_CONNECTIONS = 4
"""Connections of one node to the database for files. Further files wait."""
_S3_CONNECT_TIMEOUT = timedelta(seconds=10)
_S3_READ_TIMEOUT = timedelta(seconds=60)
_S3_REQUEST_TIMEOUT = timedelta(hours=1)
"""The deadline of a whole transfer. The other one ends a transfer that has stopped."""
_S3_MAX_PARALLEL = 4
"""Parts of one file that are uploaded at a time. Each has 5 MB, which are in memory."""


class SharedFile(Struct, frozen=True, kw_only=True):
    name: str
    size: int
    stored_at: float
    """Seconds since 1970, by the clock of the storage."""


class SharedFiles(Protocol):
    """All methods raise `OSError` with a reason for people while the storage cannot be used."""

    @property
    def name(self) -> str:
        """What people call the storage. Another storage has another name."""

    @property
    def max_bytes(self) -> int | None:
        """The size of the largest file that the storage takes; None if it has no limit."""

    async def check(self) -> None:
        """Raise `CannotStart` if the settings of the storage are wrong."""

    async def put(self, ref: str, path: Path) -> None:
        """Store a complete file, and replace one with that ref. Others see all of it or nothing."""

    async def fetch(self, ref: str, path: Path, *, limit: int) -> int:
        """Write a file to `path`, which exists, and return its size.

        Raises `FileNotFoundError` if it is not stored, and `OSError` with EFBIG if it has more than `limit` bytes.
        """

    async def list(self, folder: str) -> list[SharedFile]: ...

    async def move(self, ref: str, to: str) -> None:
        """Give a file another ref, and replace one that has it. Raises `FileNotFoundError` if it is not stored."""

    async def delete(self, ref: str) -> None:
        """Delete a file, if it is stored."""

    async def delete_folder(self, folder: str) -> None:
        """Delete all files of a folder, if there are any."""


def shared_files(settings: Settings) -> SharedFiles | None:
    """Return the storage that `files.shared` names. Raises `CannotStart` if its library is missing."""
    match settings.files.shared:
        case FileSharing.NONE:
            return None
        case FileSharing.DATABASE:
            storage = settings.storage
            connect = partial(PostgresConnection, storage.url, **connection_options(storage))
            return DatabaseFiles(connect, describe(storage.url), settings.files.max_database_bytes)
        case FileSharing.S3:
            return S3Files(settings.files)


class DatabaseFiles:
    """Files as rows of the table `file`, in parts, so that only one part is in memory.

    Each call connects and runs in a thread of its own. A lost connection rolls back what it has not committed.
    """

    def __init__(self, connect: Callable[[], PostgresConnection], name: str, max_bytes: int) -> None:
        self._connect = connect
        self.name = f"the database {name}"
        self.max_bytes: int | None = max_bytes
        self._slots = asyncio.Semaphore(_MAX_CONNECTIONS)

    async def check(self) -> None:
        """Do nothing: the spool has connected to the database, and migrated it."""

    async def put(self, ref: str, path: Path) -> None:
        folder, name = _split(ref)

        def insert(connection: PostgresConnection, is_cancelled: Event) -> None:
            with path.open("rb") as file, _transaction(connection):
                _lock(connection, ref)
                connection.execute("DELETE FROM file WHERE folder = ? AND name = ?", (folder, name))
                part = 0
                # An empty file has one part, too.
                while (content := file.read(_PART_SIZE)) or part == 0:
                    if is_cancelled.is_set():
                        raise InterruptedError
                    connection.execute(
                        "INSERT INTO file (folder, name, part, stored_us, content) "
                        "VALUES (?, ?, ?, (extract(epoch FROM now()) * 1000000)::bigint, ?)",
                        (folder, name, part, content),
                    )
                    part += 1
                if is_cancelled.is_set():
                    raise InterruptedError

        await self._run(insert)

    async def fetch(self, ref: str, path: Path, *, limit: int) -> int:
        folder, name = _split(ref)

        def read(connection: PostgresConnection, is_cancelled: Event) -> int:
            # All parts are of one moment, even if another node replaces the file during the read.
            connection.begin_snapshot()
            parts, size = connection.execute(
                "SELECT count(*), coalesce(sum(octet_length(content)), 0)::bigint FROM file "
                "WHERE folder = ? AND name = ?",
                (folder, name),
            ).fetchone()
            if not parts:
                raise _missing(ref)
            _require_size(size, limit)
            with path.open("r+b") as file:
                for part in range(parts):
                    if is_cancelled.is_set():
                        raise InterruptedError
                    found = connection.execute(
                        "SELECT content FROM file WHERE folder = ? AND name = ? AND part = ?", (folder, name, part)
                    )
                    file.write(found.fetchone()[0])
            return int(size)

        return await self._run(read)

    async def list(self, folder: str) -> list[SharedFile]:
        # The size of a value is known without reading it.
        select = (
            "SELECT name, sum(octet_length(content))::bigint, min(stored_us) FROM file WHERE folder = ? GROUP BY name"
        )
        rows = await self._run(lambda connection, _: connection.execute(select, (folder,)).fetchall())
        return [SharedFile(name=name, size=size, stored_at=stored_us / 1e6) for name, size, stored_us in rows]

    async def move(self, ref: str, to: str) -> None:
        def update(connection: PostgresConnection, _: Event) -> None:
            with _transaction(connection):
                for each in sorted({ref, to}):  # In one order, so that two moves do not deadlock.
                    _lock(connection, each)
                stored = connection.execute("SELECT 1 FROM file WHERE folder = ? AND name = ? LIMIT 1", _split(ref))
                if stored.fetchone() is None:
                    raise _missing(ref)
                connection.execute("DELETE FROM file WHERE folder = ? AND name = ?", _split(to))
                statement = "UPDATE file SET folder = ?, name = ? WHERE folder = ? AND name = ?"
                connection.execute(statement, (*_split(to), *_split(ref)))

        await self._run(update)

    async def delete(self, ref: str) -> None:
        statement = "DELETE FROM file WHERE folder = ? AND name = ?"
        await self._run(lambda connection, _: connection.execute(statement, _split(ref)))

    async def delete_folder(self, folder: str) -> None:
        await self._run(lambda connection, _: connection.execute("DELETE FROM file WHERE folder = ?", (folder,)))

    async def _run(self, work: Callable[[PostgresConnection, Event], T]) -> T:
        """Run `work` with a connection. After a cancellation it commits nothing, and no one waits for it."""
        is_cancelled = Event()

        def run() -> T:
            try:
                with self._connect() as connection:
                    return work(connection, is_cancelled)
            except Exception as error:
                match cause_of(error):
                    case Cause.CALLER | Cause.WRONG_SCHEMA:
                        raise
                    case Cause.LOST:
                        raise OSError(errno.EAGAIN, "the database can't be reached") from error
                    case _:
                        raise OSError(errno.EAGAIN, f"the database refuses ({summary(error)})") from error

        async with self._slots:
            try:
                return await in_daemon_thread("shared-files", run)
            except asyncio.CancelledError:
                is_cancelled.set()
                raise


class S3Files:
    """Files as objects of a bucket, by the library obstore. It needs S3's list, get, put, copy and delete.

    Names are percent-encoded in the keys: services differ in the characters that they take.
    """

    max_bytes: int | None = None

    def __init__(self, settings: FileSettings) -> None:
        self._settings = settings
        self.name = f"the bucket {settings.s3_bucket} of {settings.s3_endpoint or 'AWS'}"
        if settings.s3_prefix:
            self.name += f", under {settings.s3_prefix}"
        self._store = _open_bucket(settings)

    async def check(self) -> None:
        try:
            await self.list("check")
        except OSError as error:
            if error.errno != errno.EACCES:
                log.warning("shared_files_unavailable", storage=self.name, reason=error.strerror)
                return
            raise CannotStart(
                f"{self.name.capitalize()} can't be used ({error.strerror}). Check files.s3_bucket, files.s3_region, "
                "files.s3_access_key and files.s3_secret_key, and the rights of the key."
            ) from error

    async def put(self, ref: str, path: Path) -> None:
        import obstore  # noqa: PLC0415 - only gateways with S3 have it.

        async with self._errors():
            await obstore.put_async(self._store, _key(ref), path, max_concurrency=_S3_MAX_PARALLEL)

    async def fetch(self, ref: str, path: Path, *, limit: int) -> int:
        import obstore  # noqa: PLC0415 - as above.

        async with self._errors():
            found = await obstore.get_async(self._store, _key(ref))
            size = found.meta["size"]
            _require_size(size, limit)
            with path.open("r+b") as file:
                async for content in found.stream(_PART_SIZE):
                    await asyncio.to_thread(file.write, content)
        return size

    async def list(self, folder: str) -> list[SharedFile]:
        import obstore  # noqa: PLC0415 - as above.

        async with self._errors():
            found = await obstore.list(self._store, folder).collect_async()
        return [
            SharedFile(
                name=unquote(each["path"].rpartition("/")[2]),
                size=each["size"],
                stored_at=each["last_modified"].timestamp(),
            )
            for each in found
        ]

    async def move(self, ref: str, to: str) -> None:
        import obstore  # noqa: PLC0415 - as above.

        # The copy comes first, so a crash leaves both.
        async with self._errors():
            await obstore.rename_async(self._store, _key(ref), _key(to))

    async def delete(self, ref: str) -> None:
        await self._delete([_key(ref)])

    async def delete_folder(self, folder: str) -> None:
        await self._delete([_key(f"{folder}/{each.name}") for each in await self.list(folder)])

    async def _delete(self, keys: Sequence[str]) -> None:
        import obstore  # noqa: PLC0415 - as above.

        if keys:
            async with self._errors():
                await obstore.delete_async(self._store, keys)

    @asynccontextmanager
    async def _errors(self) -> AsyncIterator[None]:
        """Translate the errors of obstore. A missing object is a `FileNotFoundError` already."""
        from obstore.exceptions import BaseError  # noqa: PLC0415 - as above.

        try:
            yield
        except BaseError as error:
            # The text has the request and the XML of the response. Neither contains the secret key.
            code = re.search(r"<Code>(\w+)</Code>", str(error))
            is_refused = re.search(r"status code: 40[134]\b", str(error)) is not None
            reason = f"the bucket refuses: {code[1]}" if code else "the bucket can't be reached"
            raise OSError(errno.EACCES if is_refused else errno.EAGAIN, reason) from error


def _open_bucket(settings: FileSettings) -> S3Store:
    try:
        from obstore.store import S3Store  # noqa: PLC0415 - only gateways with S3 have it.
    except ImportError as error:
        raise CannotStart(
            f'files.shared is "s3", but its library can\'t be loaded ({error}). '
            f"Install it: {Installation.present().extra_command('s3')}"
        ) from error
    bucket, access_key, secret_key = settings.s3_bucket, settings.s3_access_key, settings.s3_secret_key
    if bucket is None or access_key is None or secret_key is None:
        raise ValueError("The settings require all three.")
    endpoint = settings.s3_endpoint or f"https://s3.{settings.s3_region}.amazonaws.com"
    return S3Store(
        bucket,
        prefix=settings.s3_prefix or None,
        access_key_id=access_key.reveal(),
        secret_access_key=secret_key.reveal(),
        region=settings.s3_region,
        endpoint=endpoint,
        client_options={
            "allow_http": endpoint.startswith("http:"),
            "connect_timeout": _S3_CONNECT_TIMEOUT,
            "read_timeout": _S3_READ_TIMEOUT,
            "timeout": _S3_REQUEST_TIMEOUT,
        },
        retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=30)},
    )


@contextmanager
def _transaction(connection: PostgresConnection) -> Iterator[None]:
    """Commit at the end. After an error the caller closes the connection, and the server rolls back."""
    connection.begin()
    yield
    connection.commit()


def _lock(connection: PostgresConnection, ref: str) -> None:
    """Let only this transaction change a file. Two that insert the same parts would fail."""
    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(?, 0))", (f"file:{ref}",))


def _split(ref: str) -> tuple[str, str]:
    folder, _, name = ref.partition("/")
    return folder, name


def _key(ref: str) -> str:
    folder, name = _split(ref)
    return f"{folder}/{quote(name, safe='')}"


def _missing(ref: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), ref)


def _require_size(size: int, limit: int) -> None:
    if size > limit:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
