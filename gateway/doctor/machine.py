"""The machine under the gateway: room and speed of the disk, and whether the clock can be believed. It blocks."""

import errno
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from gateway.doctor.finding import Finding, fine, odd, wrong

__all__ = ["clock", "disk", "file_system", "fsync_speed"]

_MIB = 1024 * 1024
LEAST_BYTES = 64 * _MIB
"""Below that the spool soon refuses messages."""
FEW_BYTES = 1024 * _MIB
FEW_FILES = 1000
SLOW_FSYNC = 0.1
"""Every accepted message waits for one, though many share it."""
_PROBES = 9
_FULL = {errno.ENOSPC, errno.EDQUOT}
_SKEW = 120.0
_UNSAFE = {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"}
_FLEETING = {"tmpfs", "ramfs", "overlay"}
_NOT_BEFORE = datetime(2026, 1, 1, tzinfo=UTC)


def disk(directory: Path, usage: Callable[[Path], os.statvfs_result] = os.statvfs) -> Finding:
    found = usage(directory)
    free = found.f_bavail * found.f_frsize
    room = f"{free // _MIB} MiB are free at {directory}."
    if free < LEAST_BYTES:
        return wrong("disk", f"Only {room}", "Make room: messages are refused when nothing is left.")
    if found.f_files and found.f_favail < FEW_FILES:
        return wrong(
            "disk", f"{directory} can hold only {found.f_favail} more files.", "Remove files that nobody needs."
        )
    return odd("disk", f"Only {room}", "Make room before it is needed.") if free < FEW_BYTES else fine("disk", room)


def fsync_speed(directory: Path, *, slow: float = SLOW_FSYNC, clock: Callable[[], float] = time.monotonic) -> Finding:
    """Write a little and wait until the disk has it, as each accepted message does."""
    try:
        took = statistics.median(_synced(directory, clock))
    except OSError as trouble:
        fix = "Make room." if trouble.errno in _FULL else "Give it to the gateway's user."
        return wrong("fsync", f"Nothing can be written to {directory}: {trouble.strerror}.", fix)
    said = f"A write is safe on disk after {took * 1000:.1f} ms."
    if took < slow:
        return fine("fsync", said)
    return odd(
        "fsync", said, "Messages wait for that. Put gateway.data_dir on a faster disk, or see what else uses it."
    )


def _synced(directory: Path, clock: Callable[[], float]) -> list[float]:
    took = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(_PROBES):
            begun = clock()
            file.write(b"\0" * 4096)
            file.flush()
            os.fsync(file.fileno())
            took.append(clock() - begun)
    return took


def file_system(directory: Path, mounts: Path = Path("/proc/self/mounts")) -> Iterator[Finding]:
    """Say something only of file systems on which data is not safe."""
    kind = _kind_of(directory.resolve(), mounts)
    if kind in _UNSAFE:
        yield odd(
            "disk",
            f"{directory} is on {kind}, where locks and fsync cannot be relied on.",
            "Use a disk of this machine.",
        )
    elif kind in _FLEETING:
        yield odd(
            "disk",
            f"{directory} is on {kind}, which does not outlive the machine or its container.",
            "Set gateway.data_dir to a place that stays, or mount a volume there.",
        )


def _kind_of(directory: Path, mounts: Path) -> str:
    """Return the type of the innermost mount; the last one wins where several are on top of each other."""
    best, kind = -1, ""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        _, point, found, *_ = line.split(" ")
        place = Path(point.replace("\\040", " "))
        if directory.is_relative_to(place) and len(place.parts) >= best:
            best, kind = len(place.parts), found
    return kind


def clock(directory: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Finding:
    """Compare the clock with what is on disk, and ask whoever keeps it right."""
    at = now()
    if at < _NOT_BEFORE:
        return wrong(
            "clock", f"The clock says {at:%Y-%m-%d}, which is long past.", "Set it: `timedatectl set-ntp true`."
        )
    newest = _newest(directory)
    if newest - at.timestamp() > _SKEW:
        written = datetime.fromtimestamp(newest, UTC)
        said = f"The clock says {at:%Y-%m-%d %H:%M} UTC, but data was written at {written:%Y-%m-%d %H:%M}."
        return wrong("clock", said, "Set the clock: `timedatectl set-ntp true`.")
    if _synchronized() == "no":
        said = "Nobody keeps the clock right (timedatectl says it is not synchronized)."
        return odd("clock", said, "`timedatectl set-ntp true`, or install chrony.")
    return fine("clock", f"It is {at:%Y-%m-%d %H:%M:%S} UTC.")


def _newest(directory: Path) -> float:
    files = (directory / name for name in ("spool.db", "spool.db-wal", "sessions/index.json"))
    return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)


def _synchronized() -> str:
    """Return what systemd says: yes, no, or nothing where it is not there."""
    program = shutil.which("timedatectl")
    if program is None:
        return ""
    try:
        asked = subprocess.run(  # noqa: S603 - our own words.
            [program, "show", "--property=NTPSynchronized", "--value"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout.strip()
