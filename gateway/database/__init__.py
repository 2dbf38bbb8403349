"""Databases: connections, schema and migrations of the SQL storage engines."""
