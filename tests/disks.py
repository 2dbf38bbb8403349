"""Disks of a few megabytes, mounted for one test, and limits on the size of files."""

import os
import resource
import subprocess
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs


def fill(ballast: Path) -> None:
    """Append to the file `ballast` until the disk is full."""
    with ballast.open("ab", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4_096)):
            pass


@contextmanager
def small_disk(place: Path, size: int) -> Iterator[Path]:
    """Mount an empty disk of `size` bytes at `place`. Skips the test if that is impossible."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small disk")
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(place)]
    mounted = subprocess.run(command, check=False, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        # Lazily: a process that another test starts at this moment can hold a copy of the mount until it has started.
        subprocess.run(["umount", "--lazy", str(place)], check=True)  # noqa: S607 - wherever it is installed


@contextmanager
def files_at_most(size: int) -> Iterator[list[MutableMapping[str, Any]]]:
    """Let no file grow beyond `size`: a write across it is cut short, and the next one fails, as on a full disk.

    This applies to the file that pytest writes the log to, too. So the log lines are yielded instead.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        with capture_logs() as logs:
            yield logs
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
