"""Backups: the whole data directory, as of one moment, in one archive."""
