import platform
from pathlib import Path

import pytest

from gateway.garbage import give_back


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1024**2


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries give back by themselves, or never")
def test_what_a_rush_has_left_goes_back_to_the_system() -> None:
    rush = [bytes(4_000) for _ in range(25_000)]
    kept = rush[::100]
    rush.clear()
    before = resident_mb()
    give_back()
    assert before - resident_mb() > 40
    assert len(kept) == 250
