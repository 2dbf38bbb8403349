"""How much room the disk of the data directory has left, as it was found the last time somebody looked."""

import asyncio
import shutil
from pathlib import Path

__all__ = ["FreeSpace"]


class FreeSpace:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.free: int | None = None
        """Bytes; None before the first look."""
        self.size: int | None = None

    async def look(self) -> None:
        try:
            found = await asyncio.to_thread(shutil.disk_usage, self._directory)
        except OSError:
            return  # Whoever writes there says what is wrong, better than we could.
        self.free, self.size = found.free, found.total
