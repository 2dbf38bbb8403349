"""What SQL statements run on: a connection to SQLite or to PostgreSQL.

`sqlite3.Connection` is a `Connection` as it is. Statements follow these rules, so that they mean the same in both:

1. Placeholders are `?` or `:name`. `? IS NULL` is not possible: PostgreSQL cannot tell the type of that parameter.
2. `INSERT ... ON CONFLICT DO NOTHING` or `DO UPDATE`, never `INSERT OR ...`. `DO UPDATE` names the table of a column.
3. Integers in place of booleans, and bytes for blobs. Sums are cast: PostgreSQL returns decimals otherwise.
4. The order of text is that of the database's language in PostgreSQL. Only ids and numbers give a sure order.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

Parameters = Sequence[Any] | Mapping[str, Any]  # Any: the types of the columns.


class UnpreparedStatement(str):
    """A statement that PostgreSQL plans for its values each time, because the best plan depends on them.

    The server plans a prepared statement once for all values after a few runs.
    """

    __slots__ = ()


class Cursor(Protocol):
    """The outcome of a statement. A row is a tuple."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...  # noqa: ANN401 - as above; None after the last row.

    def fetchall(self) -> list[Any]: ...  # Any: as above.

    def __iter__(self) -> Iterator[Any]: ...  # Any: as above.


class Connection(Protocol):
    def execute(self, sql: str, parameters: Parameters = ..., /) -> Cursor: ...

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> Cursor:  # Any: the types of the columns.
        """Run a statement once for each row. The row count of the cursor is that of all together."""
