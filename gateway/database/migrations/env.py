"""Alembic runs this file for each command. `gateway/database/migrate.py` passes the connection, and commits."""

from alembic import context

from gateway.database.schema import metadata

connection = context.config.attributes.get("connection")
if connection is None:  # Print SQL instead of running it.
    context.configure(dialect_name=context.config.attributes["dialect"], target_metadata=metadata, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()
else:
    context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
    context.run_migrations()
