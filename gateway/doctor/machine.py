"""Checks of the machine: space and speed of the disk, its file system, and the clock. All of them block."""

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

from gateway.doctor.finding import Finding, error, ok, warning
from gateway.text.plain import in_bytes, local_time, took

_MIB = 1024 * 1024
LEAST_BYTES = 64 * _MIB
"""Below this, the spool soon refuses messages."""
FEW_BYTES = 1024 * _MIB
FEW_FILES = 1000
SLOW_FSYNC = 0.1
"""Every accepted message waits for an fsync, though many messages share one."""
_FSYNC_PROBES = 9
_FULL = {errno.ENOSPC, errno.EDQUOT}
_MAX_CLOCK_SKEW = 120.0
_UNSAFE_FILE_SYSTEMS = {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"}
_TEMPORARY_FILE_SYSTEMS = {"tmpfs", "ramfs", "overlay"}
_EARLIEST_DATE = datetime(2026, 1, 1, tzinfo=UTC)
_SET_CLOCK = "Set the clock: `timedatectl set-ntp true`."


def check_disk(directory: Path, usage: Callable[[Path], os.statvfs_result] = os.statvfs) -> Finding:
    found = usage(directory)
    free = found.f_bavail * found.f_frsize
    room = f"{in_bytes(free)} free at {directory}."
    if free < LEAST_BYTES:
        return error("disk", f"Only {room}", "Free some space. A full disk makes the gateway refuse messages.")
    # Some file systems, like btrfs, report no inodes at all.
    if found.f_files and found.f_favail < FEW_FILES:
        return error(
            "disk", f"Only {found.f_favail} more files fit on the disk of {directory}.", "Remove unused files."
        )
    if free < FEW_BYTES:
        return warning("disk", f"Only {room}", "Free some space soon.")
    return ok("disk", room)


def check_fsync(directory: Path, *, slow: float = SLOW_FSYNC, clock: Callable[[], float] = time.monotonic) -> Finding:
    """Measure how long a small write takes to reach the disk, as for each accepted message."""
    times = []
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            for _ in range(_FSYNC_PROBES):
                started = clock()
                file.write(b"\0" * 4096)
                file.flush()
                os.fsync(file.fileno())
                times.append(clock() - started)
    except OSError as failure:
        fix = "Free some space." if failure.errno in _FULL else "Make the gateway's user the owner of the directory."
        return error("fsync", f"Can't write to {directory}: {failure.strerror}.", fix)
    typical = statistics.median(times)  # A single slow write, as after a pause of the disk, does not count.
    message = f"A write reaches the disk after {took(typical)}."
    if typical < slow:
        return ok("fsync", message)
    fix = "Each message waits that long. Put gateway.data_dir on a faster disk, or check what else uses this one."
    return warning("fsync", message, fix)


def check_file_system(directory: Path, mounts: Path = Path("/proc/self/mounts")) -> Iterator[Finding]:
    """Yield a warning if data is not safe on the file system of `directory`."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    # Find the innermost mount. Where several mounts cover each other, the last one counts.
    depth, kind = -1, ""
    for line in lines:
        _, point, mounted, *_ = line.split(" ")
        # The kernel writes a space in a path as \040.
        place = Path(point.replace("\\040", " "))
        if directory.resolve().is_relative_to(place) and len(place.parts) >= depth:
            depth, kind = len(place.parts), mounted
    if kind in _UNSAFE_FILE_SYSTEMS:
        yield warning("disk", f"{directory} is on {kind}, where locks and fsync are unreliable.", "Use a local disk.")
    elif kind in _TEMPORARY_FILE_SYSTEMS:
        yield warning(
            "disk",
            f"{directory} is on {kind}, so its data is lost when the machine or container goes away.",
            "Set gateway.data_dir to a permanent directory, or mount a volume there.",
        )


def check_clock(directory: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Finding:
    """Compare the clock with the files in `directory`, and ask systemd whether it is synchronized."""
    time_now = now()
    if time_now < _EARLIEST_DATE:
        return error("clock", f"The clock says {local_time(time_now)}, which is in the past.", _SET_CLOCK)
    files = (directory / name for name in ("spool.db", "spool.db-wal", "sessions/index.json"))
    newest = max((file.lstat().st_mtime for file in files if os.path.lexists(file)), default=0.0)
    if newest - time_now.timestamp() > _MAX_CLOCK_SKEW:
        written = datetime.fromtimestamp(newest, UTC)
        message = f"The clock says {local_time(time_now)}, but data was written at {local_time(written)}."
        return error("clock", message, _SET_CLOCK)
    if program := shutil.which("timedatectl"):
        command = [program, "show", "--property=NTPSynchronized", "--value"]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)  # noqa: S603 - fixed words.
        except (OSError, subprocess.TimeoutExpired):
            result = None
        if result is not None and result.stdout.strip() == "no":
            message = "timedatectl says that the clock is not synchronised."
            return warning("clock", message, "Run `timedatectl set-ntp true`, or install chrony.")
    return ok("clock", f"The time is {local_time(time_now)}.")
