"""The name of a database in messages."""

import pytest

from gateway.database.postgres import describe


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql://ann:secret@db/chat", "chat on db"),
        ("postgresql://db:5433/chat", "chat on db:5433"),
        ("postgresql:///chat", "chat on this machine"),
        ("postgresql://db1,db2/chat", "chat on db1 or db2"),
        ("postgresql://db1:5433,db2:5434/chat", "chat on db1:5433 or db2:5434"),
        ("postgresql:///chat?host=/run/a,/run/b&port=5433", "chat on /run/a:5433 or /run/b:5433"),
    ],
)
def test_a_database_is_named_with_its_servers_and_without_its_password(url: str, name: str) -> None:
    assert describe(url) == name
