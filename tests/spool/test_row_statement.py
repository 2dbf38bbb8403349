from collections.abc import Sequence

import pytest

from gateway.database.postgres import PostgresConnection
from gateway.database.row_statement import RowBatch, RowStatement

INSERT = RowStatement(
    "INSERT INTO note (name, size, data) VALUES (?, ?, ?)", ("text", "bigint", "bytea"), table="note", key=(0,)
)
UPDATE = RowStatement(
    "UPDATE note SET size = ? WHERE name = ? AND size <> 7", ("bigint", "text"), table="note", key=(1,)
)
DELETE = RowStatement("DELETE FROM note WHERE name = ?", ("text",), table="note", key=(0,))
SAVE = RowStatement(
    "INSERT INTO note (name, size) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET size = excluded.size",
    ("text", "bigint"),
    table="note",
    key=(0,),
)


def groups(*changes: tuple[RowStatement, Sequence[object]]) -> list[tuple[RowStatement, list[Sequence[object]]]]:
    batch = RowBatch()
    for statement, row in changes:
        batch.add(statement, row)
    return [(group.statement, group.rows) for group in batch.take()]


def test_rows_of_a_statement_are_one_group() -> None:
    assert groups((INSERT, ("a",)), (UPDATE, (1, "x")), (INSERT, ("b",)), (UPDATE, (2, "y"))) == [
        (INSERT, [("a",), ("b",)]),
        (UPDATE, [(1, "x"), (2, "y")]),
    ]


def test_changes_of_the_same_row_keep_their_order() -> None:
    assert groups((UPDATE, (1, "a")), (DELETE, ("a",)), (UPDATE, (2, "b")), (UPDATE, (3, "a"))) == [
        (UPDATE, [(1, "a"), (2, "b")]),
        (DELETE, [("a",)]),
        (UPDATE, [(3, "a")]),
    ]


@pytest.mark.parametrize("statement", [UPDATE, SAVE])
def test_a_group_changes_no_row_twice(statement: RowStatement) -> None:
    row = (1, "a") if statement is UPDATE else ("a", 1)
    assert groups((statement, row), (statement, row)) == [(statement, [row])] * 2


def test_a_batch_that_was_taken_is_empty() -> None:
    batch = RowBatch()
    batch.add(INSERT, ("a",))
    batch.take()

    assert (batch.size, batch.take()) == (0, [])


def test_types_have_to_fit_the_parameters() -> None:
    with pytest.raises(ValueError, match="1 types"):
        RowStatement("INSERT INTO note (name, size) VALUES (?, ?)", ("text",), table="note", key=(0,))


def test_many_rows_are_stored_as_one_by_one(each_database_url: str) -> None:
    rows = [("ä", 2**62, b"\0\xff"), ("", -1, None), ("nul \0", 0, b""), ("d", None, b"{}")]
    with PostgresConnection(each_database_url) as connection:
        connection.execute("CREATE TABLE note (name text PRIMARY KEY, size bigint, data bytea)")
        with connection.pipeline():
            for row in rows:
                assert connection.execute(INSERT, row).rowcount == 1
        with connection.pipeline():
            for name in ("ä", "", "d"):
                connection.execute(UPDATE, (5, name))
                connection.execute(DELETE, (f"not {name}",))
        stored = connection.execute('SELECT name, size, data FROM note ORDER BY name COLLATE "C"').fetchall()

    assert stored == [("", 5, None), ("d", None, b"{}"), ("nul \ufffd", 0, b""), ("ä", 5, b"\0\xff")]
