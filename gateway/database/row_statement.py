"""`RowStatement`: SQL that changes one row, which PostgreSQL can run once for many rows.

The rows of a pipeline are collected in a `RowBatch`. Each statement then runs once, with an array for each parameter:
the server parses, plans and starts it once instead of once for each row.
"""

import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Self

_PLACEHOLDER = re.compile(r"\?")
# An array in the binary format: the number of its dimensions, a flag for NULL, the type of its elements, its length,
# its first index, and the elements, each after its length. That is `array_send` in PostgreSQL's arrayfuncs.c.
_ARRAY = struct.Struct("!iiIii")
_pack_length = struct.Struct("!i").pack
_NULL = _pack_length(-1)
_ELEMENT_TYPES = {"bigint": 20, "bytea": 17}
_TEXT_TYPE = 25


class RowStatement(str):
    """A statement with `?` for its parameters, which have the types `types`: text, bigint or bytea.

    "text[]::uuid" is a text that PostgreSQL has to convert.
    `table` and the parameters at the positions `key` name the row that it depends on: for an entry, that of its
    session. An INSERT has one list of VALUES. An UPDATE or DELETE has a WHERE.
    """

    __slots__ = ("can_repeat_key", "for_arrays", "key", "table", "types")

    types: Sequence[str]
    table: str
    key: tuple[int, ...]
    can_repeat_key: bool
    """Whether one run of it can have several rows with the same key."""
    for_arrays: str

    def __new__(cls, sql: str, types: Sequence[str], *, table: str, key: tuple[int, ...]) -> Self:
        statement = super().__new__(cls, " ".join(sql.split()))
        statement.types, statement.table, statement.key = types, table, key
        statement.can_repeat_key = statement.startswith("INSERT") and "DO UPDATE" not in statement
        arrays = ", ".join(f"${number}::{kind}[]" for number, kind in enumerate(types, 1))
        if statement.startswith("INSERT"):
            head, values, tail = re.split(r"VALUES (\([?, ]+\))", statement)
            if values.count("?") != len(types):
                raise ValueError(f"{len(types)} types, but the statement is {sql}")
            statement.for_arrays = f"{head}SELECT * FROM unnest({arrays}){tail}"  # noqa: S608 - constants only
        else:
            numbers = iter(range(1, len(types) + 1))
            named = _PLACEHOLDER.sub(lambda _: f"new.p{next(numbers)}", statement)
            columns = ", ".join(f"p{number}" for number in range(1, len(types) + 1))
            word = "USING" if statement.startswith("DELETE") else "FROM"
            head, _, condition = named.partition(" WHERE ")
            statement.for_arrays = f"{head} {word} unnest({arrays}) AS new ({columns}) WHERE {condition}"
        return statement


class RowGroup:
    """Rows for one run of a statement. It is the cursor of each of them: each is assumed to change one row."""

    __slots__ = ("is_counted", "rows", "statement")

    def __init__(self, statement: RowStatement) -> None:
        self.statement = statement
        self.rows: list[Sequence[Any]] = []  # Any: the types of the columns.
        self.is_counted = False
        """Whether anyone relies on the assumption."""

    @property
    def rowcount(self) -> int:
        self.is_counted = True
        return 1

    def arrays(self) -> list[bytes]:
        """Return an array for each parameter, in PostgreSQL's binary format."""
        columns = zip(*self.rows, strict=True)
        return [_array(kind, column) for kind, column in zip(self.statement.types, columns, strict=True)]

    def fetchone(self) -> None:
        return None

    def fetchall(self) -> list[Any]:  # Any: as in `Cursor`.
        return []

    def __iter__(self) -> Iterator[Any]:  # Any: as in `Cursor`.
        return iter(())


class RowBatch:
    """Rows in few groups. The changes of a row keep their order, and so do the rows of a statement."""

    def __init__(self) -> None:
        self.size = 0
        self._groups: list[RowGroup] = []
        self._latest: dict[RowStatement, int] = {}
        self._last_change: dict[tuple[Any, ...], int] = {}

    def add(self, statement: RowStatement, parameters: Sequence[Any]) -> RowGroup:  # Any: the types of the columns.
        row = (statement.table, *[parameters[at] for at in statement.key])
        latest, last_change = self._latest.get(statement, -1), self._last_change.get(row, -1)
        if latest < last_change or latest < 0 or (latest == last_change and not statement.can_repeat_key):
            latest = self._latest[statement] = len(self._groups)
            self._groups.append(RowGroup(statement))
        self._last_change[row] = latest
        group = self._groups[latest]
        group.rows.append(parameters)
        self.size += 1
        return group

    def take(self) -> list[RowGroup]:
        """Return the groups in the order in which they have to run, and forget them."""
        groups, self._groups = self._groups, []
        self.size = 0
        self._latest.clear()
        self._last_change.clear()
        return groups


def _array(kind: str, values: Sequence[Any]) -> bytes:  # Any: the types of the columns.
    parts: list[bytes] = []
    for value in values:
        if value is None:
            parts.append(_NULL)
            continue
        if kind == "bigint":
            data = value.to_bytes(8, "big", signed=True)
        elif kind == "bytea":
            data = value
        else:
            data = text_bytes(value)
        parts += (_pack_length(len(data)), data)
    element = _ELEMENT_TYPES.get(kind, _TEXT_TYPE)
    return _ARRAY.pack(1, None in values, element, len(values), 1) + b"".join(parts)


def text_bytes(value: str) -> bytes:
    data = value.encode()
    # PostgreSQL cannot store this character, and an error message of a platform may contain it.
    return data.replace(b"\0", b"\xef\xbf\xbd") if b"\0" in data else data
