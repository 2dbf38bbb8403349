import pytest

from gateway.errors import Refused
from gateway.spool import SpoolUnavailable
from gateway.spool.spool import retry_while_unavailable


class Disk:
    """Full for so many tries."""

    def __init__(self, full_for: int) -> None:
        self._full_for = full_for
        self.tries = 0
        self.waits: list[float] = []

    async def write(self) -> str:
        self.tries += 1
        if self.tries <= self._full_for:
            raise SpoolUnavailable("no room")
        return "written"

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


async def test_retry_while_unavailable_waits_longer_each_time() -> None:
    disk = Disk(full_for=3)
    assert await retry_while_unavailable(disk.write, sleep=disk.sleep) == "written"
    assert disk.tries == 4
    assert len(disk.waits) == 3
    assert disk.waits[2] > disk.waits[0]


async def test_retry_while_unavailable_raises_other_errors() -> None:
    async def refuse() -> None:
        raise Refused("Never.")

    with pytest.raises(Refused):
        await retry_while_unavailable(refuse)
