"""Schedules, and their runs.

Revision ID: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
oldest = "0004"

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    zero, nothing = sa.text("0"), sa.text("''")
    op.create_table(
        "schedules",
        sa.Column("id", _KEY, primary_key=True),
        sa.Column("scope", _KEY, nullable=False),
        sa.Column("number", _NUMBER, nullable=False),
        sa.Column("state", _KEY, nullable=False),
        sa.Column("due_at", _NUMBER),
        sa.Column("planned_at", _NUMBER),
        sa.Column("ran_for", _NUMBER),
        sa.Column("is_forced", _NUMBER, nullable=False, server_default=zero),
        sa.Column("runs", _NUMBER, nullable=False, server_default=zero),
        sa.Column("failures", _NUMBER, nullable=False, server_default=zero),
        sa.Column("session", _KEY, nullable=False, server_default=nothing),
        sa.Column("seen", sa.Text, nullable=False, server_default=nothing),
        sa.Column("note", sa.Text, nullable=False, server_default=nothing),
        sa.Column("spent_day", sa.Text, nullable=False, server_default=nothing),
        sa.Column("spent_tokens", _NUMBER, nullable=False, server_default=zero),
        sa.Column("spent_micros", _NUMBER, nullable=False, server_default=zero),
        sa.Column("over_at", _NUMBER),
        sa.Column("about", sa.LargeBinary, nullable=False),
        sa.UniqueConstraint("scope", "number", name="schedules_number"),
    )
    for column in ("due_at", "over_at"):
        where = sa.text(f"{column} IS NOT NULL")
        name = f"schedules_{column.removesuffix('_at')}"
        op.create_index(name, "schedules", [column], sqlite_where=where, postgresql_where=where)
    op.create_table(
        "schedule_runs",
        sa.Column("schedule", _KEY, nullable=False),
        sa.Column("number", _NUMBER, nullable=False),
        sa.Column("state", _KEY, nullable=False),
        sa.Column("planned_at", _NUMBER, nullable=False),
        sa.Column("started_at", _NUMBER, nullable=False),
        sa.Column("ended_at", _NUMBER),
        sa.Column("times", _NUMBER, nullable=False, server_default=sa.text("1")),
        sa.Column("session", _KEY, nullable=False, server_default=nothing),
        sa.Column("note", sa.Text, nullable=False, server_default=nothing),
        sa.Column("tokens", _NUMBER, nullable=False, server_default=zero),
        sa.Column("cost_micros", _NUMBER, nullable=False, server_default=zero),
        sa.PrimaryKeyConstraint("schedule", "number"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("schedule_runs")
    op.drop_table("schedules")
