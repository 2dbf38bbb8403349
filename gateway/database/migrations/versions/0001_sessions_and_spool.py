"""The spool, sessions and transcripts, and the views of sessions and messages.

Revision ID: 0001
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from gateway.database.views import VIEWS_0001

revision = "0001"
down_revision = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_UUID = sa.Text().with_variant(postgresql.UUID(as_uuid=False), "postgresql")
_TIMESTAMP = sa.Text().with_variant(sa.DateTime(timezone=True), "postgresql")

_TABLES = ("seen", "inbox", "outbox", "drafts", "facts", "usage", "reminders", "deletions", "writer")
_MESSAGES = "type IN ('user', 'assistant', 'system', 'clear', 'undo', 'tool_use', 'plan', 'approval', 'file')"
_MOMENTS = {
    "postgresql": "(to_timestamp({0}::float8 / 1000000))",
    "sqlite": "(strftime('%Y-%m-%dT%H:%M:%S', {0} / 1000000, 'unixepoch') || printf('.%06dZ', {0} % 1000000))",
}


def _where(condition: str) -> dict[str, Any]:
    """Return the options of a partial index."""
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


def upgrade() -> None:
    _create_spool()
    _create_sessions()
    dialect = op.get_context().dialect.name
    moment = _MOMENTS[dialect]
    op.create_index("session_created", "session", [sa.text(moment.format("created_us"))])
    op.create_index("session_updated", "session", [sa.text(moment.format("updated_us"))])
    op.create_index("entry_timestamp", "entry", [sa.text(moment.format("at_us"))], **_where(_MESSAGES))
    for statement in VIEWS_0001[dialect].values():
        op.execute(sa.text(statement.replace(":", r"\:")))


def downgrade() -> None:
    for view in ("AgentMessage", "AgentSession"):
        op.execute(f"DROP VIEW {view}")
    for table in ("entry", "session", "repo", *_TABLES):
        op.drop_table(table)


def _create_spool() -> None:
    op.create_table(
        "seen",
        sa.Column("id", _NUMBER, sa.Identity(), primary_key=True),
        sa.Column("channel", _KEY, nullable=False),
        sa.Column("account", _KEY, nullable=False),
        sa.Column("event_id", _KEY, nullable=False),
        sa.Column("at", _NUMBER, nullable=False),
        sa.UniqueConstraint("channel", "account", "event_id", name="seen_event"),
    )
    op.create_table(
        "inbox",
        sa.Column("id", _NUMBER, sa.Identity(), primary_key=True),
        sa.Column("turn", _KEY, nullable=False),
        sa.Column("state", _KEY, nullable=False),
        sa.Column("scope", _KEY, nullable=False),
        sa.Column("session", _KEY, nullable=False),
        sa.Column("number", _NUMBER, nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("accepted_at", _NUMBER, nullable=False),
        sa.Column("attempts", _NUMBER, nullable=False, server_default=sa.text("0")),
        sa.Column("answered_by", sa.Text),
        sa.Column("note", sa.Text, nullable=False, server_default=sa.text("''")),
        sa.Column("inbound", sa.LargeBinary, nullable=False),
        sa.Column("event_id", _KEY, nullable=False, server_default=sa.text("''")),
        sa.UniqueConstraint("turn", name="inbox_turn"),
    )
    op.create_index("inbox_unanswered", "inbox", ["state"], **_where("state NOT IN ('answered', 'abandoned')"))
    op.create_index("inbox_event", "inbox", ["event_id"])
    op.create_table(
        "outbox",
        sa.Column("id", _NUMBER, sa.Identity(), primary_key=True),
        sa.Column("key", _KEY, nullable=False),
        sa.Column("turn", sa.Text),
        sa.Column("state", _KEY, nullable=False),
        sa.Column("created_at", _NUMBER, nullable=False),
        sa.Column("sending_at", _NUMBER),
        sa.Column("delivered_at", _NUMBER),
        sa.Column("attempts", _NUMBER, nullable=False, server_default=sa.text("0")),
        sa.Column("reason", sa.Text, nullable=False, server_default=sa.text("''")),
        sa.Column("receipt", sa.LargeBinary),
        sa.Column("message", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("key", name="outbox_key"),
    )
    op.create_index("outbox_undelivered", "outbox", ["state"], **_where("state <> 'delivered'"))
    op.create_table(
        "drafts",
        sa.Column("turn", _KEY, primary_key=True),
        sa.Column("receipt", sa.LargeBinary, nullable=False),
        sa.Column("at", _NUMBER, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "facts",
        sa.Column("name", _KEY, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "usage",
        sa.Column("day", _KEY, nullable=False),
        sa.Column("person", _KEY, nullable=False),
        sa.Column("model", _KEY, nullable=False),
        sa.Column("input_tokens", _NUMBER, nullable=False),
        sa.Column("cached_tokens", _NUMBER, nullable=False),
        sa.Column("output_tokens", _NUMBER, nullable=False),
        sa.Column("cost_micros", _NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("day", "person", "model"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "reminders",
        sa.Column("id", _KEY, primary_key=True),
        sa.Column("scope", _KEY, nullable=False),
        sa.Column("number", _NUMBER, nullable=False),
        sa.Column("due_at", _NUMBER),
        sa.Column("cron", sa.Text),
        sa.Column("rung_for", _NUMBER),
        sa.Column("rings", _NUMBER, nullable=False, server_default=sa.text("0")),
        sa.Column("failures", _NUMBER, nullable=False, server_default=sa.text("0")),
        sa.Column("over_at", _NUMBER),
        sa.Column("about", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("scope", "number", name="reminders_number"),
    )
    op.create_index("reminders_due", "reminders", ["due_at"], **_where("due_at IS NOT NULL"))
    op.create_index("reminders_over", "reminders", ["over_at"], **_where("over_at IS NOT NULL"))
    op.create_table(
        "deletions",
        sa.Column("session", _KEY, primary_key=True),
        sa.Column("outbox_id", _NUMBER, nullable=False),
        sa.Column("is_purged", _NUMBER, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "writer",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=False),
        sa.Column("boot", sa.Text, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("batch", _NUMBER, nullable=False, server_default=sa.text("0")),
        sa.Column("renewed_at", _TIMESTAMP, nullable=False, server_default=sa.text("CURRENT_TIMESTAMP")),
        sa.CheckConstraint("id = 1", name="writer_is_one_row"),
        postgresql_with={"fillfactor": 10},
    )


def _create_sessions() -> None:
    op.create_table(
        "repo",
        sa.Column("id", _KEY, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("path", sa.Text, nullable=False),
    )
    op.create_table(
        "session",
        sa.Column("key", _KEY, primary_key=True),
        sa.Column("scope", _KEY, nullable=False),
        sa.Column("number", _NUMBER, nullable=False),
        sa.Column("id", _UUID, nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("repo", _KEY, sa.ForeignKey("repo.id", name="session_repo", onupdate="CASCADE")),
        sa.Column("status", _KEY, nullable=False),
        sa.Column("created_us", _NUMBER, nullable=False),
        sa.Column("updated_us", _NUMBER, nullable=False),
        sa.Column("archived_us", _NUMBER),
        sa.Column("archived_why", sa.Text),
        sa.Column("state", sa.Text, nullable=False),
        postgresql_with={"fillfactor": 70},
    )
    op.create_index("session_scope", "session", ["scope", "number"])
    op.create_index("session_id", "session", ["id"])
    op.create_index("session_of_repo", "session", ["repo"], **_where("repo IS NOT NULL"))
    op.create_index("session_archived", "session", ["archived_us"], **_where("archived_us IS NOT NULL"))
    op.create_index("session_status", "session", ["status"])
    op.create_table(
        "entry",
        sa.Column(
            "session",
            _KEY,
            sa.ForeignKey("session.key", name="entry_session", onupdate="CASCADE", ondelete="CASCADE"),
            nullable=False,
        ),
        sa.Column("seq", _NUMBER, nullable=False),
        sa.Column("type", _KEY, nullable=False),
        sa.Column("at_us", _NUMBER, nullable=False),
        sa.Column("line", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("session", "seq"),
        sqlite_with_rowid=False,
    )
