"""${message}

Revision ID: ${up_revision}
"""

from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
# Or that of `down_revision`, if that version can work with the new schema: see docs/adr/0053-upgrade-by-one-version.md.
oldest = ${repr(up_revision)}


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    ${downgrades if downgrades else "pass"}
