"""Full-text search: the folded text of each message, and an index of its trigrams.

Revision ID: 0002
"""

import json

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_ROWS_PER_STEP = 1000

# A row of `search_text` is that of the entry `seq` of the session with the number `rowid >> 32` in `search_session`. It
# has no copy of the text, only which trigrams it contains, so a deletion needs the text.
#
# An index of FTS5 is slow to change row by row, so `search_pending` has the entries that are not in it yet: they are
# searched one by one, and added to the index together.
_SQLITE = (
    """CREATE VIRTUAL TABLE search_text USING fts5(
    folded, content='', columnsize=0, detail=none, tokenize='trigram case_sensitive 1')""",
    "CREATE TABLE search_session (id INTEGER PRIMARY KEY, session TEXT NOT NULL UNIQUE)",
    """CREATE TABLE search_pending (
    session TEXT NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (session, seq)
) WITHOUT ROWID""",
    "INSERT INTO search_pending SELECT session, seq FROM entry WHERE folded IS NOT NULL",
    """CREATE TRIGGER search_added AFTER INSERT ON entry WHEN NEW.folded IS NOT NULL BEGIN
    INSERT INTO search_pending (session, seq) VALUES (NEW.session, NEW.seq);
END""",
    """CREATE TRIGGER search_removed AFTER DELETE ON entry WHEN OLD.folded IS NOT NULL BEGIN
    INSERT INTO search_text (search_text, rowid, folded)
        SELECT 'delete', (s.id << 32) | OLD.seq, OLD.folded FROM search_session s
        WHERE s.session = OLD.session
            AND NOT EXISTS (SELECT 1 FROM search_pending p WHERE p.session = OLD.session AND p.seq = OLD.seq);
    DELETE FROM search_pending WHERE session = OLD.session AND seq = OLD.seq;
END""",
    """CREATE TRIGGER search_session_removed AFTER DELETE ON session BEGIN
    DELETE FROM search_session WHERE session = OLD.key;
END""",
)

# pg_trgm is a trusted extension: the owner of a database may create it. A provider may have removed it, though. Without
# the index, searches read all messages of their sessions.
_POSTGRESQL = """
DO $search$
DECLARE
    place text;
BEGIN
    BEGIN
        CREATE EXTENSION IF NOT EXISTS pg_trgm;
    EXCEPTION WHEN OTHERS THEN
        RAISE WARNING USING MESSAGE = 'pg_trgm cannot be created, so searches are slow: ' || SQLERRM;
    END;
    SELECT n.nspname INTO place FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
        WHERE e.extname = 'pg_trgm';
    IF place IS NOT NULL THEN
        EXECUTE 'CREATE INDEX entry_search ON entry USING gin (folded ' || quote_ident(place) || '.gin_trgm_ops) '
            'WITH (gin_pending_list_limit = 512) WHERE folded IS NOT NULL';
    END IF;
END $search$
"""


def upgrade() -> None:
    text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.add_column("entry", sa.Column("folded", text))
    _fill()
    if op.get_context().dialect.name == "sqlite":
        for statement in _SQLITE:
            op.execute(statement)
    else:
        op.execute(_POSTGRESQL)


def downgrade() -> None:
    if op.get_context().dialect.name == "sqlite":
        for trigger in ("search_added", "search_removed", "search_session_removed"):
            op.execute(f"DROP TRIGGER {trigger}")
        for table in ("search_text", "search_session", "search_pending"):
            op.execute(f"DROP TABLE {table}")
    else:
        op.execute("DROP INDEX IF EXISTS entry_search")  # The extension stays: others may use it.
    op.execute("ALTER TABLE entry DROP COLUMN folded")


def _fill() -> None:
    """Fold the text of the messages that are there. Printed statements cannot do that, and are for empty databases."""
    if op.get_context().as_sql:
        return
    connection = op.get_bind()
    found = sa.text(
        "SELECT session, seq, line FROM entry WHERE type IN ('user', 'assistant') AND (session, seq) > (:session, :seq)"
        " ORDER BY session, seq LIMIT :count"
    )
    fold = sa.text("UPDATE entry SET folded = :folded WHERE session = :session AND seq = :seq")
    session, seq = "", 0
    while rows := connection.execute(found, {"session": session, "seq": seq, "count": _ROWS_PER_STEP}).fetchall():
        session, seq, _ = rows[-1]
        texts = [(row.session, row.seq, _content(row.line)) for row in rows]
        folded = [{"session": key, "seq": number, "folded": text} for key, number, text in texts if text]
        if folded:
            connection.execute(fold, folded)


def _content(line: str) -> str:
    try:
        content = json.loads(line)["content"]
    except (ValueError, KeyError, TypeError):
        return ""
    return content.casefold().replace("\0", "\ufffd") if isinstance(content, str) else ""
