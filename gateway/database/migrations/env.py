"""Alembic runs this file for each command. `gateway/database/migrate.py` passes the connection, and commits."""

from collections.abc import Collection, Mapping

from alembic import context
from alembic.runtime.migration import MigrationContext, MigrationInfo
from alembic.script import Script

from gateway import __version__
from gateway.database.schema import metadata


def record_compatibility(
    ctx: MigrationContext, step: MigrationInfo, heads: Collection[str], run_args: Mapping[str, object]
) -> None:
    """Store which versions may use the database after a migration, up or down."""
    del run_args
    for head in heads:
        script = step.revision_map.get_revision(head)
        if isinstance(script, Script) and (oldest := getattr(script.module, "oldest", None)):
            ctx.execute(f"UPDATE compatibility SET oldest = '{oldest}', version = '{__version__}'")  # noqa: S608 - constants.


connection = context.config.attributes.get("connection")
if connection is None:  # Print SQL instead of running it.
    context.configure(
        dialect_name=context.config.attributes["dialect"],
        target_metadata=metadata,
        literal_binds=True,
        on_version_apply=record_compatibility,
    )
    with context.begin_transaction():
        context.run_migrations()
else:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=True,
        on_version_apply=record_compatibility,
    )
    context.run_migrations()
