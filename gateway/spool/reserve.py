"""A file that reserves disk space. It is deleted when the disk is full, so that accepted work can finish."""

import os
import stat
from pathlib import Path

import structlog

from gateway.private_files import open_private, rename_aside

log: structlog.stdlib.BoundLogger = structlog.get_logger()

RESERVE_SIZE = 1024 * 1024


class Reserve:
    """While the reserve is not held, the spool accepts no new messages."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_held = False

    def hold(self) -> bool:
        """Create the file unless that would leave less free space than its size. Returns whether it is held."""
        try:
            status = self._path.lstat()
            if not stat.S_ISREG(status.st_mode):
                log.warning("reserve_set_aside", file=str(rename_aside(self._path)))
            self.is_held = stat.S_ISREG(status.st_mode) and status.st_size >= RESERVE_SIZE
        except OSError:
            self.is_held = False
        if self.is_held:
            return True
        # Without a margin the file itself would fill the disk, and the next commit would delete it again.
        disk = os.statvfs(self._path.parent)
        if disk.f_bavail * disk.f_frsize < 2 * RESERVE_SIZE:
            return False
        try:
            descriptor = open_private(self._path, os.O_WRONLY | os.O_CREAT)
        except OSError:
            return False
        try:
            # Allocates real blocks. A sparse file would reserve nothing.
            os.posix_fallocate(descriptor, 0, RESERVE_SIZE)
        except OSError:
            self.release()
            return False
        finally:
            os.close(descriptor)
        self.is_held = True
        return True

    def release(self) -> bool:
        """Delete the file. Returns False if it was deleted before, or cannot be deleted."""
        self.is_held = False
        try:
            self._path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            log.warning("reserve_not_released", file=str(self._path), reason=str(error))
            return False
        return True
