"""Changes of facts that all nodes have in memory."""

import psycopg

from config import StorageSettings
from gateway.cluster.membership import survey
from gateway.daemon import SHARED_FACTS
from gateway.database.migrate import ensure_current
from gateway.database.postgres import PostgresConnection


def test_each_transaction_that_changes_shared_facts_is_counted(database_url: str) -> None:
    ensure_current(StorageSettings.model_validate({"url": database_url}))
    with psycopg.connect(database_url, autocommit=True) as writer, PostgresConnection(database_url) as reader:
        assert survey([], reader).facts == dict.fromkeys(SHARED_FACTS, 0)
        changes = [
            ("INSERT INTO facts VALUES ('guests/in/ann', '1'), ('token:a', '1')", {"guests/": 1, "token:": 1}),
            ("INSERT INTO facts SELECT 'moved/' || n, '1' FROM generate_series(1, 30000) n", {"moved/": 1}),
            ("DELETE FROM facts WHERE name LIKE 'moved/%'", {"moved/": 2}),
            ("UPDATE facts SET value = '2' WHERE name LIKE 'guests/%'", {"guests/": 2}),
            ("UPDATE facts SET value = '2'", {"token:": 2}),
            ("UPDATE facts SET name = 'grants/a' WHERE name = 'token:a'", {"token:": 3, "grants/": 1}),
            ("INSERT INTO facts VALUES ('workspaces/guests/', '1'), ('guests', '1')", {}),
            ("DELETE FROM facts", {"guests/": 3, "grants/": 2}),
        ]
        expected = dict.fromkeys(SHARED_FACTS, 0)
        for statement, counts in changes:
            writer.execute(statement)
            expected |= counts
            assert survey([], reader).facts == expected, statement
