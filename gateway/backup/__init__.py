"""Backups: the data directory at one moment in one archive, and back."""

from gateway.backup.restoring import Restored, insist_on_whole, restore
from gateway.backup.taking import Backup

__all__ = ["Backup", "Restored", "insist_on_whole", "restore"]
