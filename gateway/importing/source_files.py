"""Reads files that another program has written: damaged, huge or strange ones raise `UnknownFormat` with the reason."""

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from gateway.importing.values import SCHEDULES_DIFFER, SKILLS_CAN_BE_COPIED, LeftOut, UnknownFormat
from gateway.text import clean
from gateway.text.plain import in_bytes

MAX_BYTES = 250_000_000
"""Of one file that is read as a whole."""
MAX_LINE = 32_000_000
"""Bytes of one line of a file of JSON lines. A longer one is left out."""
_MIN_MILLISECONDS = 100_000_000_000
"""A number of seconds as large as this would be in the year 5138, so it must be milliseconds."""

Item = Mapping[str, Any]  # Any: JSON from another program.


def load_json(text: str | bytes) -> Any:  # noqa: ANN401  # Any: JSON from another program.
    """Return the value of a JSON text; None if it is none."""
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):  # The standard library reads more, slowly.
        with suppress(ValueError, RecursionError):
            return json.loads(text)
    return None


def find_folder(named: object) -> Path | None:
    """Return the folder that the settings of another gateway name, unless it is of another machine or user."""
    if not isinstance(named, str):
        return None
    try:
        path = Path(named).expanduser()
        return path if path.is_absolute() and path.is_dir() else None
    except (OSError, RuntimeError):  # It may not be looked at, or is in the home folder of an unknown user.
        return None


def read_bytes(path: Path) -> bytes:
    """Return the content of a file. Raises `UnknownFormat` if that is impossible or too much."""
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise UnknownFormat(f"{path.name} has {in_bytes(size)}, and more than {in_bytes(MAX_BYTES)} are not read")
        if not path.is_file():  # A named pipe would be waited for.
            raise UnknownFormat(f"{path.name} is not a file")
        return path.read_bytes()
    except OSError as error:
        raise UnknownFormat(f"{path.name} can't be read: {error.strerror}") from error


def read_text(path: Path) -> str:
    return read_bytes(path).decode("utf-8-sig", errors="replace")


def read_object(path: Path) -> Item:
    """Return the JSON object in a file."""
    found = load_json(read_text(path))
    if not isinstance(found, dict):
        raise UnknownFormat(f"{path.name} is damaged: it is not a JSON object")
    return found


def read_settings(path: Path, left_out: list[LeftOut], read: Callable[[Path], Item] = read_object) -> Item:
    """Return the settings in a file; nothing if it does not exist, or is damaged and added to `left_out`."""
    try:
        return read(path) if path.exists() else {}
    except UnknownFormat as error:
        left_out.append(LeftOut(what="settings", why=str(error), is_damaged=True))
        return {}


def other_files(workspace: Path, *, schedules: str) -> Iterator[LeftOut]:
    """Yield what a workspace has besides conversations and memory. `schedules` is the path of its schedules."""
    for name, why in ((schedules, SCHEDULES_DIFFER), ("skills", SKILLS_CAN_BE_COPIED)):
        if (workspace / name).exists():
            yield LeftOut(what=name, why=why)


def read_lines(path: Path) -> Iterator[Any]:
    """Yield the values of a file of JSON lines, one at a time; None for a line that is damaged or too long."""
    try:
        if not path.is_file():
            raise UnknownFormat(f"{path.name} is not a file")
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE):
                if len(line) == MAX_LINE and not line.endswith(b"\n"):
                    while (rest := file.readline(MAX_LINE)) and not rest.endswith(b"\n"):
                        pass
                    yield None
                elif line.strip():
                    yield load_json(line.decode("utf-8-sig", errors="replace"))
    except OSError as error:
        raise UnknownFormat(f"{path.name} can't be read: {error.strerror}") from error


@contextmanager
def open_database(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a SQLite database of another program for reading, even if that program runs or has crashed.

    Its folder is not changed. Errors of the database become `UnknownFormat`.

    1. Without a write-ahead log nobody has it open, and SQLite reads it without making files of its own.
    2. With a log and its index, the program runs, and SQLite shares the database with it.
    3. Otherwise a crash has left a log that must be played back, which changes the database: a copy is read.
    """
    if not path.is_file():
        raise UnknownFormat(f"{path.name} is not a file")
    log, index = (path.with_name(f"{path.name}-{kind}") for kind in ("wal", "shm"))
    try:
        with TemporaryDirectory(prefix="gatehouse-import-") as folder:
            connection = None
            with suppress(sqlite3.OperationalError):
                if not log.exists():
                    connection = _connected(path, "mode=ro&immutable=1")
                elif index.exists():
                    connection = _connected(path, "mode=ro")
            if connection is None:
                copy = Path(folder) / path.name
                shutil.copyfile(path, copy)
                with suppress(FileNotFoundError):
                    shutil.copyfile(log, copy.with_name(log.name))
                connection = _connected(copy, "mode=rw")
            with closing(connection):
                connection.row_factory = sqlite3.Row
                connection.text_factory = lambda data: data.decode("utf-8", errors="replace")
                yield connection
    except (sqlite3.Error, UnicodeDecodeError) as error:  # The latter for the name of a column.
        raise UnknownFormat(f"{path.name} is damaged or no database of a known version: {error}") from error
    except OSError as error:
        raise UnknownFormat(f"{path.name} can't be read: {error.strerror}") from error


def _connected(path: Path, options: str) -> sqlite3.Connection:
    # The thread that parses is another one at each step of an import.
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{options}", uri=True, check_same_thread=False)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def columns(database: sqlite3.Connection, table: str) -> set[str]:
    """Return the names of the columns of a table; nothing if there is no such table."""
    return {str(row[1]) for row in database.execute(f"PRAGMA table_info({table})")}


def as_dict(value: object) -> Item:
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:  # Any: as above.
    return value if isinstance(value, list) else []


def identity_links(value: object) -> dict[str, tuple[str, ...]]:
    """Return the ids of each person, as two of the other gateways have them in the same form as this one."""
    return {
        clean(str(name)): tuple(clean(str(each)) for each in ids if isinstance(each, str))
        for name, ids in as_dict(value).items()
        if isinstance(ids, list)
    }


def parse_time(value: object, *, is_local: bool = False) -> datetime | None:
    """Parse ISO 8601, or seconds or milliseconds since 1970. Returns None for anything else.

    A text without a zone is UTC, or with `is_local` the time of this machine.
    """
    try:
        if isinstance(value, str):
            found = datetime.fromisoformat(value)
            return found.astimezone(UTC) if found.tzinfo or is_local else found.replace(tzinfo=UTC)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value / 1000 if value >= _MIN_MILLISECONDS else value, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    return None


def modified(path: Path) -> datetime:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except (OSError, ValueError, OverflowError):
        return datetime.fromtimestamp(0, UTC)
