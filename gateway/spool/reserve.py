"""A file that holds room on the disk, given up when the disk is full so that what was begun can be finished."""

import contextlib
import os
from pathlib import Path

import structlog

from gateway.private_files import open_private

__all__ = ["Reserve"]

log: structlog.stdlib.BoundLogger = structlog.get_logger()

SIZE = 1024 * 1024


class Reserve:
    """While it is not held, nothing new may be taken in."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_held = False

    def hold(self) -> bool:
        """Take room for it, unless that would leave less than as much again; tell whether it is held now."""
        if not self.is_held:
            self.is_held = self._has_full_size() or (self._is_room() and self._make())
        return self.is_held

    def release(self) -> bool:
        """Give the room to others; False when it was given before."""
        self.is_held = False
        try:
            self._path.unlink()
        except FileNotFoundError:
            return False
        except OSError as trouble:
            log.warning("reserve_stuck", file=str(self._path), reason=str(trouble))
            return False
        return True

    def _has_full_size(self) -> bool:
        with contextlib.suppress(OSError):
            return self._path.stat().st_size >= SIZE
        return False

    def _is_room(self) -> bool:
        disk = os.statvfs(self._path.parent)
        return disk.f_bavail * disk.f_frsize >= 2 * SIZE

    def _make(self) -> bool:
        try:
            descriptor = open_private(self._path, os.O_WRONLY | os.O_CREAT)
        except OSError:
            return False
        try:
            os.posix_fallocate(descriptor, 0, SIZE)
        except OSError:
            self.release()
            return False
        finally:
            os.close(descriptor)
        return True
