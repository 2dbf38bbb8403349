"""Usage by agent.

Revision ID: 0006
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
oldest = "0005"

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "agent_usage",
        *(sa.Column(name, _KEY, nullable=False) for name in ("day", "person", "model", "agent")),
        *(
            sa.Column(name, _NUMBER, nullable=False)
            for name in ("input_tokens", "cached_tokens", "output_tokens", "cost_micros")
        ),
        sa.PrimaryKeyConstraint("day", "person", "model", "agent"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("agent_usage")
