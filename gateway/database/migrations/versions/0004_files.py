"""Attachments that the nodes of a cluster share.

Revision ID: 0004
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
oldest = "0004"


def upgrade() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    key = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.create_table(
        "file",
        sa.Column("folder", key, nullable=False),
        sa.Column("name", key, nullable=False),
        sa.Column("part", number, nullable=False),
        sa.Column("stored_us", number, nullable=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("folder", "name", "part"),
    )


def downgrade() -> None:
    op.drop_table("file")
