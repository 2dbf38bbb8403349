import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from gateway.spool import Spool

Crash = Callable[[], Awaitable[Spool]]


@pytest.fixture
async def spool(tmp_path: Path) -> AsyncIterator[Spool]:
    async with await Spool.open(tmp_path) as opened:
        yield opened


@pytest.fixture
async def crash(spool: Spool, tmp_path: Path) -> AsyncIterator[Crash]:
    """Open what is on disk at this moment, as a start after kill -9 would find it."""
    copies: list[Spool] = []

    async def crashed() -> Spool:
        copies.append(await Spool.open(copied(spool.path, tmp_path / f"crash-{len(copies)}")))
        return copies[-1]

    yield crashed
    for copy in copies:
        await copy.close()


def copied(path: Path, directory: Path) -> Path:
    directory.mkdir()
    for file in path.parent.glob(f"{path.name}*"):
        if file.is_file():
            shutil.copy(file, directory)
    return directory
