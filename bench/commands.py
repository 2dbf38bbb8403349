"""Measures `gatehouse --help` and `--version`, compared with a Python that does nothing."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from bench.table import Row, median

GATEHOUSE = str(Path(sys.executable).parent / "gatehouse")
TIMES = 15
LIMIT_MS = 250
LIMIT_RATIO = 5


def rows() -> Iterator[Row]:
    bare = median(lambda: _took_ms(sys.executable, "-c", "pass"), TIMES)
    for flag in ("--help", "--version"):
        took = median(lambda flag=flag: _took_ms(GATEHOUSE, flag), TIMES)  # type: ignore[misc]  # mypy cannot infer a lambda with a default.
        yield Row(
            what=f"gatehouse {flag}",
            measured=f"{took:.0f} ms, {took / bare:.1f}x",
            baseline=f"python -c pass: {bare:.0f} ms",
            target=f"< {LIMIT_MS} ms, <= {LIMIT_RATIO}x",
            is_met=took < LIMIT_MS and took <= LIMIT_RATIO * bare,
        )


def _took_ms(*command: str) -> float:
    started = perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return (perf_counter() - started) * 1000
