"""The cluster: its nodes, the shards and posts that they own, and messages that wait for the owner of their shard.

Also which versions may use the database.

Revision ID: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
oldest = "0003"

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_KEY = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_TIMESTAMP = sa.Text().with_variant(sa.DateTime(timezone=True), "postgresql")
_SHARDS = 256

# The same as `shard_of` in gateway/shards.py. The encoding of the database is UTF-8, so the result never changes.
_FUNCTION = """
CREATE FUNCTION gatehouse_shard(scope text) RETURNS integer LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $shard$
    SELECT CASE WHEN scope ~ '^shard:[0-9]+$' THEN substr(scope, 7)::integer
        ELSE get_byte(sha256(convert_to(scope, 'UTF8')), 0) END
$shard$
"""
# Facts that every node of a cluster has in memory, by their prefixes: `SHARED_FACTS` in gateway/daemon.py.
_SHARED_FACTS = ("guests/", "owner_chats/", "grants/", "moved/", "token:", "signed_out:")
_IS_SHARED = "{0}.name ~ '^(guests/|owner_chats/|grants/|moved/|token:|signed_out:)'"
# All versions are locked in one order, so that no two transactions wait for each other. A transaction counts once:
# thousands of versions of one row would make it slow.
_FACT_FUNCTION = """
CREATE FUNCTION gatehouse_fact_changed() RETURNS trigger LANGUAGE plpgsql AS $changed$
BEGIN
    PERFORM 1 FROM fact_version ORDER BY prefix FOR NO KEY UPDATE;
    UPDATE fact_version SET version = version + 1
        WHERE (starts_with(OLD.name, prefix) OR starts_with(NEW.name, prefix))
        AND xmin <> pg_current_xact_id()::xid;
    RETURN NULL;
END
$changed$
"""
_FACT_TRIGGERS = {
    "INSERT": _IS_SHARED.format("NEW"),
    "UPDATE": f"NEW IS DISTINCT FROM OLD AND ({_IS_SHARED.format('NEW')} OR {_IS_SHARED.format('OLD')})",
    "DELETE": _IS_SHARED.format("OLD"),
}
_INDEX = "CREATE INDEX session_shard ON session (gatehouse_shard(scope), scope, number)"


def upgrade() -> None:
    compatibility = op.create_table(
        "compatibility",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=False),
        sa.Column("oldest", sa.Text, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.CheckConstraint("id = 1", name="compatibility_is_one_row"),
    )
    op.bulk_insert(compatibility, [{"id": 1, "oldest": "", "version": ""}])
    op.create_table(
        "node",
        sa.Column("boot", _KEY, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("schema", sa.Text, nullable=False),
        sa.Column("config", sa.Text, nullable=False),
        sa.Column("lease_ms", _NUMBER, nullable=False),
        sa.Column("is_leaving", _NUMBER, nullable=False, server_default=sa.text("0")),
        sa.Column("labels", sa.Text, nullable=False, server_default=sa.text("''")),
        sa.Column("batch", _NUMBER, nullable=False, server_default=sa.text("0")),
        sa.Column("joined_at", _TIMESTAMP, nullable=False, server_default=sa.text("CURRENT_TIMESTAMP")),
        sa.Column("renewed_at", _TIMESTAMP, nullable=False, server_default=sa.text("CURRENT_TIMESTAMP")),
        postgresql_with={"fillfactor": 10},
    )
    shard = op.create_table(
        "shard",
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=False),
        sa.Column("owner", _KEY),
        sa.Column("epoch", _NUMBER, nullable=False, server_default=sa.text("0")),
        sa.Column("changed_at", _TIMESTAMP, nullable=False, server_default=sa.text("CURRENT_TIMESTAMP")),
        sa.Column("lost_by", sa.Text),
        sa.Column("labels", sa.Text, nullable=False, server_default=sa.text("''")),
        postgresql_with={"fillfactor": 50},
    )
    position = op.create_table(
        "shard_position",
        sa.Column("shard", _NUMBER, primary_key=True, autoincrement=False),
        sa.Column("last", _NUMBER, nullable=False, server_default=sa.text("0")),
        postgresql_with={"fillfactor": 10},
    )
    op.bulk_insert(shard, [{"number": number} for number in range(_SHARDS)])
    op.bulk_insert(position, [{"shard": number} for number in range(_SHARDS)])
    op.create_table(
        "arrival",
        sa.Column("shard", _NUMBER, nullable=False),
        sa.Column("position", _NUMBER, nullable=False),
        sa.Column("scope", _KEY, nullable=False),
        sa.Column("at", _NUMBER, nullable=False),
        sa.Column("inbound", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("shard", "position"),
    )
    op.create_table(
        "post",
        sa.Column("channel", _KEY, nullable=False),
        sa.Column("account", _KEY, nullable=False),
        sa.Column("owner", _KEY),
        sa.Column("epoch", _NUMBER, nullable=False, server_default=sa.text("0")),
        sa.Column("changed_at", _TIMESTAMP, nullable=False, server_default=sa.text("CURRENT_TIMESTAMP")),
        sa.PrimaryKeyConstraint("channel", "account"),
    )
    version = op.create_table(
        "fact_version",
        sa.Column("prefix", _KEY, primary_key=True),
        sa.Column("version", _NUMBER, nullable=False, server_default=sa.text("0")),
        postgresql_with={"fillfactor": 10},
    )
    op.bulk_insert(version, [{"prefix": prefix} for prefix in _SHARED_FACTS])
    op.add_column("outbox", sa.Column("scope", _KEY))
    if op.get_context().dialect.name == "postgresql":
        op.execute(_FUNCTION)
        op.execute(_INDEX)
        op.execute(_FACT_FUNCTION)
        for change, condition in _FACT_TRIGGERS.items():
            op.execute(
                f"CREATE TRIGGER fact_{change.lower()} AFTER {change} ON facts FOR EACH ROW "
                f"WHEN ({condition}) EXECUTE FUNCTION gatehouse_fact_changed()"
            )


def downgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        op.execute("DROP FUNCTION gatehouse_fact_changed() CASCADE")
        op.execute("DROP INDEX session_shard")
        op.execute("DROP FUNCTION gatehouse_shard(text)")
    op.execute("ALTER TABLE outbox DROP COLUMN scope")
    for table in ("fact_version", "post", "arrival", "shard_position", "shard", "node", "compatibility"):
        op.drop_table(table)
