"""The tables of the newest schema, for SQLite and PostgreSQL. The migrations create them.

Importing this module imports SQLAlchemy, so only cold paths do that. Times are microseconds since 1970. Rows of the
spool are ordered by `id`, never by time: clocks jump.
"""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects import postgresql

from gateway.database.views import IS_MESSAGE, moment

metadata = MetaData()

_NUMBER = BigInteger().with_variant(Integer(), "sqlite")
# The collation "C" compares bytes, as SQLite does. Others may change when the system is updated: that breaks indexes.
_KEY = Text().with_variant(Text(collation="C"), "postgresql")
_UUID = Text().with_variant(postgresql.UUID(as_uuid=False), "postgresql")
_TIMESTAMP = Text().with_variant(DateTime(timezone=True), "postgresql")


def _id() -> Column[int]:
    return Column("id", _NUMBER, Identity(), primary_key=True)


# The spool: messages on their way in and out.

seen = Table(
    "seen",
    metadata,
    _id(),
    Column("channel", _KEY, nullable=False),
    Column("account", _KEY, nullable=False),
    Column("event_id", _KEY, nullable=False),
    Column("at", _NUMBER, nullable=False),
    UniqueConstraint("channel", "account", "event_id", name="seen_event"),
)

inbox = Table(
    "inbox",
    metadata,
    _id(),
    Column("turn", _KEY, nullable=False),
    Column("state", _KEY, nullable=False),
    Column("scope", _KEY, nullable=False),
    Column("session", _KEY, nullable=False),
    Column("number", _NUMBER, nullable=False),
    Column("agent", Text, nullable=False),
    Column("accepted_at", _NUMBER, nullable=False),
    Column("attempts", _NUMBER, nullable=False, server_default=text("0")),
    Column("answered_by", Text),
    Column("note", Text, nullable=False, server_default=text("''")),
    Column("inbound", LargeBinary, nullable=False),
    Column("event_id", _KEY, nullable=False, server_default=text("''")),
    UniqueConstraint("turn", name="inbox_turn"),
)
_UNANSWERED = text("state NOT IN ('answered', 'abandoned')")
Index("inbox_unanswered", inbox.c.state, sqlite_where=_UNANSWERED, postgresql_where=_UNANSWERED)
Index("inbox_event", inbox.c.event_id)

outbox = Table(
    "outbox",
    metadata,
    _id(),
    Column("key", _KEY, nullable=False),
    Column("turn", Text),
    Column("state", _KEY, nullable=False),
    Column("created_at", _NUMBER, nullable=False),
    Column("sending_at", _NUMBER),
    Column("delivered_at", _NUMBER),
    Column("attempts", _NUMBER, nullable=False, server_default=text("0")),
    Column("reason", Text, nullable=False, server_default=text("''")),
    Column("receipt", LargeBinary),
    Column("message", LargeBinary, nullable=False),
    # In a cluster, whose shard it belongs to.
    Column("scope", _KEY),
    UniqueConstraint("key", name="outbox_key"),
)
_UNDELIVERED = text("state <> 'delivered'")
Index("outbox_undelivered", outbox.c.state, sqlite_where=_UNDELIVERED, postgresql_where=_UNDELIVERED)

drafts = Table(
    "drafts",
    metadata,
    Column("turn", _KEY, primary_key=True),
    Column("receipt", LargeBinary, nullable=False),
    Column("at", _NUMBER, nullable=False),
    sqlite_with_rowid=False,
)

facts = Table(
    "facts",
    metadata,
    Column("name", _KEY, primary_key=True),
    Column("value", Text, nullable=False),
    sqlite_with_rowid=False,
)

# Days are UTC, as YYYY-MM-DD.
usage = Table(
    "usage",
    metadata,
    Column("day", _KEY, nullable=False),
    Column("person", _KEY, nullable=False),
    Column("model", _KEY, nullable=False),
    Column("input_tokens", _NUMBER, nullable=False),
    Column("cached_tokens", _NUMBER, nullable=False),
    Column("output_tokens", _NUMBER, nullable=False),
    Column("cost_micros", _NUMBER, nullable=False),
    PrimaryKeyConstraint("day", "person", "model"),
    sqlite_with_rowid=False,
)

# What `usage` has, for each agent. Usage before this table came has no agent.
agent_usage = Table(
    "agent_usage",
    metadata,
    Column("day", _KEY, nullable=False),
    Column("person", _KEY, nullable=False),
    Column("model", _KEY, nullable=False),
    Column("agent", _KEY, nullable=False),
    Column("input_tokens", _NUMBER, nullable=False),
    Column("cached_tokens", _NUMBER, nullable=False),
    Column("output_tokens", _NUMBER, nullable=False),
    Column("cost_micros", _NUMBER, nullable=False),
    PrimaryKeyConstraint("day", "person", "model", "agent"),
    sqlite_with_rowid=False,
)

# A row without `due_at` has ended. It stays for a while, so that its number is not reused at once.
reminders = Table(
    "reminders",
    metadata,
    Column("id", _KEY, primary_key=True),
    Column("scope", _KEY, nullable=False),
    Column("number", _NUMBER, nullable=False),
    Column("due_at", _NUMBER),
    Column("cron", Text),
    Column("rung_for", _NUMBER),
    Column("rings", _NUMBER, nullable=False, server_default=text("0")),
    Column("failures", _NUMBER, nullable=False, server_default=text("0")),
    Column("over_at", _NUMBER),
    Column("about", LargeBinary, nullable=False),
    UniqueConstraint("scope", "number", name="reminders_number"),
)
_DUE, _OVER = text("due_at IS NOT NULL"), text("over_at IS NOT NULL")
Index("reminders_due", reminders.c.due_at, sqlite_where=_DUE, postgresql_where=_DUE)
Index("reminders_over", reminders.c.over_at, sqlite_where=_OVER, postgresql_where=_OVER)

schedules = Table(
    "schedules",
    metadata,
    Column("id", _KEY, primary_key=True),
    Column("scope", _KEY, nullable=False),
    Column("number", _NUMBER, nullable=False),
    Column("state", _KEY, nullable=False),
    Column("due_at", _NUMBER),
    Column("planned_at", _NUMBER),
    Column("ran_for", _NUMBER),
    Column("is_forced", _NUMBER, nullable=False, server_default=text("0")),
    Column("runs", _NUMBER, nullable=False, server_default=text("0")),
    Column("failures", _NUMBER, nullable=False, server_default=text("0")),
    Column("session", _KEY, nullable=False, server_default=text("''")),
    Column("seen", Text, nullable=False, server_default=text("''")),
    Column("note", Text, nullable=False, server_default=text("''")),
    Column("spent_day", Text, nullable=False, server_default=text("''")),
    Column("spent_tokens", _NUMBER, nullable=False, server_default=text("0")),
    Column("spent_micros", _NUMBER, nullable=False, server_default=text("0")),
    Column("over_at", _NUMBER),
    Column("about", LargeBinary, nullable=False),
    UniqueConstraint("scope", "number", name="schedules_number"),
)
Index("schedules_due", schedules.c.due_at, sqlite_where=_DUE, postgresql_where=_DUE)
Index("schedules_over", schedules.c.over_at, sqlite_where=_OVER, postgresql_where=_OVER)

schedule_runs = Table(
    "schedule_runs",
    metadata,
    Column("schedule", _KEY, nullable=False),
    Column("number", _NUMBER, nullable=False),
    Column("state", _KEY, nullable=False),
    Column("planned_at", _NUMBER, nullable=False),
    Column("started_at", _NUMBER, nullable=False),
    Column("ended_at", _NUMBER),
    Column("times", _NUMBER, nullable=False, server_default=text("1")),
    Column("session", _KEY, nullable=False, server_default=text("''")),
    Column("note", Text, nullable=False, server_default=text("''")),
    Column("tokens", _NUMBER, nullable=False, server_default=text("0")),
    Column("cost_micros", _NUMBER, nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("schedule", "number"),
    sqlite_with_rowid=False,
)

# Sessions whose deletion is not finished.
deletions = Table(
    "deletions",
    metadata,
    Column("session", _KEY, primary_key=True),
    Column("outbox_id", _NUMBER, nullable=False),
    Column("is_purged", _NUMBER, nullable=False),
    sqlite_with_rowid=False,
)

# The gateway that may write. Each of its transactions changes the one row, so the table has room for new versions.
writer = Table(
    "writer",
    metadata,
    Column("id", _NUMBER, primary_key=True, autoincrement=False),
    Column("boot", Text, nullable=False),
    Column("holder", Text, nullable=False),
    Column("batch", _NUMBER, nullable=False, server_default=text("0")),
    Column("renewed_at", _TIMESTAMP, nullable=False, server_default=text("CURRENT_TIMESTAMP")),
    CheckConstraint("id = 1", name="writer_is_one_row"),
    postgresql_with={"fillfactor": 10},
)

# One row: the oldest schema whose version may use the database, and the version that has migrated it. Older versions
# read this table, so it never changes.
compatibility = Table(
    "compatibility",
    metadata,
    Column("id", _NUMBER, primary_key=True, autoincrement=False),
    Column("oldest", Text, nullable=False),
    Column("version", Text, nullable=False),
    CheckConstraint("id = 1", name="compatibility_is_one_row"),
)

# The cluster. Only PostgreSQL uses these tables.

# The nodes that are alive. Like `writer`, each of their transactions changes a row.
node = Table(
    "node",
    metadata,
    Column("boot", _KEY, primary_key=True),
    Column("name", Text, nullable=False),
    Column("address", Text, nullable=False),
    Column("holder", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("schema", Text, nullable=False),
    Column("config", Text, nullable=False),
    Column("lease_ms", _NUMBER, nullable=False),
    Column("is_leaving", _NUMBER, nullable=False, server_default=text("0")),
    Column("labels", Text, nullable=False, server_default=text("''")),
    Column("batch", _NUMBER, nullable=False, server_default=text("0")),
    Column("joined_at", _TIMESTAMP, nullable=False, server_default=text("CURRENT_TIMESTAMP")),
    Column("renewed_at", _TIMESTAMP, nullable=False, server_default=text("CURRENT_TIMESTAMP")),
    postgresql_with={"fillfactor": 10},
)

# `owner` is the boot of a node. `epoch` counts the owners. `lost_by` is the name of the last one that has crashed.
# `labels` are those that the sessions of the shard need, with a space between two of them.
# The index of the sessions of a shard, `session_shard`, is in migration 0003.
shard = Table(
    "shard",
    metadata,
    Column("number", _NUMBER, primary_key=True, autoincrement=False),
    Column("owner", _KEY),
    Column("epoch", _NUMBER, nullable=False, server_default=text("0")),
    Column("changed_at", _TIMESTAMP, nullable=False, server_default=text("CURRENT_TIMESTAMP")),
    Column("lost_by", Text),
    Column("labels", Text, nullable=False, server_default=text("''")),
    postgresql_with={"fillfactor": 50},
)

# How many messages each shard has accepted. Its row is locked while a message is accepted, so the messages of a shard
# are numbered without gaps and in the order of their commits.
shard_position = Table(
    "shard_position",
    metadata,
    Column("shard", _NUMBER, primary_key=True, autoincrement=False),
    Column("last", _NUMBER, nullable=False, server_default=text("0")),
    postgresql_with={"fillfactor": 10},
)

# Messages that were accepted by a node that does not own their shard. They wait for its owner.
arrival = Table(
    "arrival",
    metadata,
    Column("shard", _NUMBER, nullable=False),
    Column("position", _NUMBER, nullable=False),
    Column("scope", _KEY, nullable=False),
    Column("at", _NUMBER, nullable=False),
    Column("inbound", LargeBinary, nullable=False),
    PrimaryKeyConstraint("shard", "position"),
)

# The bots of which only one node may receive messages.
post = Table(
    "post",
    metadata,
    Column("channel", _KEY, nullable=False),
    Column("account", _KEY, nullable=False),
    Column("owner", _KEY),
    Column("epoch", _NUMBER, nullable=False, server_default=text("0")),
    Column("changed_at", _TIMESTAMP, nullable=False, server_default=text("CURRENT_TIMESTAMP")),
    PrimaryKeyConstraint("channel", "account"),
)

# How often the facts with each prefix have changed, of those that all nodes have in memory. Triggers, which are in
# migration 0003, count that.
fact_version = Table(
    "fact_version",
    metadata,
    Column("prefix", _KEY, primary_key=True),
    Column("version", _NUMBER, nullable=False, server_default=text("0")),
    postgresql_with={"fillfactor": 10},
)

# Sessions.

# A row stays as long as a session refers to it, even if the configuration does not have the repository any more.
repo = Table(
    "repo",
    metadata,
    Column("id", _KEY, primary_key=True),
    Column("name", Text, nullable=False),
    Column("path", Text, nullable=False),
)

# `id` is that of the header. One that is no UUID is stored as UUID(bytes=packed_id(id)); `state` has the original. A
# copy of a session has the same id, so it is not unique. `state` is the JSON of the `SessionState`.
session = Table(
    "session",
    metadata,
    Column("key", _KEY, primary_key=True),
    Column("scope", _KEY, nullable=False),
    Column("number", _NUMBER, nullable=False),
    Column("id", _UUID, nullable=False),
    Column("agent", Text, nullable=False),
    Column("repo", _KEY, ForeignKey("repo.id", name="session_repo", onupdate="CASCADE")),
    Column("status", _KEY, nullable=False),
    Column("created_us", _NUMBER, nullable=False),
    Column("updated_us", _NUMBER, nullable=False),
    Column("archived_us", _NUMBER),
    Column("archived_why", Text),
    Column("state", Text, nullable=False),
    # Room for new versions of a row on its own page: most changes of a session leave the indexed columns as they are.
    postgresql_with={"fillfactor": 70},
)
Index("session_scope", session.c.scope, session.c.number)
Index("session_id", session.c.id)
_HAS_REPO, _ARCHIVED = text("repo IS NOT NULL"), text("archived_us IS NOT NULL")
Index("session_of_repo", session.c.repo, sqlite_where=_HAS_REPO, postgresql_where=_HAS_REPO)
Index("session_archived", session.c.archived_us, sqlite_where=_ARCHIVED, postgresql_where=_ARCHIVED)
Index("session_status", session.c.status)

# The transcripts. `line` is the JSON of an entry without its newline, and `type` the type of the entry: that decides
# whether the views read the line, so a line that is no valid entry has the type "damaged". `folded` is the text of a
# message of a person or an agent, with its case folded. The index of its trigrams, which differs between SQLite and
# PostgreSQL, is in migration 0002.
entry = Table(
    "entry",
    metadata,
    Column(
        "session",
        _KEY,
        ForeignKey("session.key", name="entry_session", onupdate="CASCADE", ondelete="CASCADE"),
        nullable=False,
    ),
    Column("seq", _NUMBER, nullable=False),
    Column("type", _KEY, nullable=False),
    Column("at_us", _NUMBER, nullable=False),
    Column("line", Text, nullable=False),
    Column("folded", _KEY),
    PrimaryKeyConstraint("session", "seq"),
    sqlite_with_rowid=False,
)

# Attachments that the nodes of a cluster share, in parts of about 1 MB. Only PostgreSQL has rows here.
file = Table(
    "file",
    metadata,
    Column("folder", _KEY, nullable=False),
    Column("name", _KEY, nullable=False),
    Column("part", _NUMBER, nullable=False),
    Column("stored_us", _NUMBER, nullable=False),
    Column("content", LargeBinary, nullable=False),
    PrimaryKeyConstraint("folder", "name", "part"),
)

# The views show times as timestamps, so the indexes have these.
for _dialect in ("sqlite", "postgresql"):
    for _name, _column in (("session_created", "created_us"), ("session_updated", "updated_us")):
        Index(_name, text(f"({moment(_dialect, _column)})"), _table=session).ddl_if(dialect=_dialect)
    Index(
        "entry_timestamp",
        text(f"({moment(_dialect, 'at_us')})"),
        _table=entry,
        sqlite_where=text(IS_MESSAGE),
        postgresql_where=text(IS_MESSAGE),
    ).ddl_if(dialect=_dialect)
