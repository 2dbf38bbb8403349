"""Backups: the data directory at one moment in one archive, and back."""

from gateway.backup.restoring import Restored, restore
from gateway.backup.taking import Backup

__all__ = ["Backup", "Restored", "restore"]
