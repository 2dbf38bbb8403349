"""Who can get at our files besides us. It blocks."""

import os
import stat
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from gateway.doctor.finding import Finding, fine, wrong
from gateway.text.phrases import count

__all__ = ["permissions"]

_OTHERS = 0o077
_NOT_OURS = ("workspace",)
"""What agents write is as they want it; the folder above is closed."""
_NAMED = 3


def permissions(directory: Path, config: Path | None, *, holds_secrets: bool) -> list[Finding]:
    """Look at every file of the data directory, and at the configuration where a secret stands in it."""
    findings = list(_exposed_data(directory.resolve()))  # systemd's StateDirectory is a link.
    if config is not None and holds_secrets and config.stat().st_mode & _OTHERS:
        said = f"{config} holds a secret and others can read it."
        findings.append(wrong("permissions", said, f"chmod 600 {config}", partial(_close, [config])))
    return findings or [fine("permissions", f"{directory} is closed to others.")]


def _exposed_data(directory: Path) -> Iterator[Finding]:
    top = directory.stat()
    if top.st_uid != os.geteuid() and os.geteuid() != 0:
        said = f"{directory} belongs to user {top.st_uid}, and you are {os.geteuid()}."
        yield wrong("permissions", said, "Run this as the gateway's user, or give the directory to it.")
        return
    foreign, exposed = _looked_through(directory, top.st_uid)
    if exposed:
        said = f"Others can get at {_some(exposed)} in {directory}."
        yield wrong("permissions", said, f"chmod -R go= {directory}", partial(_close, exposed))
    if foreign:
        said = f"{_some(foreign)} in {directory} belong to another user; the gateway may not get at them."
        yield wrong("permissions", said, f"As root: chown -R {top.st_uid} {directory}")


def _looked_through(directory: Path, owner: int) -> tuple[list[Path], list[Path]]:
    foreign, exposed = [], []
    for path in (directory, *_inside(directory)):
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue  # A running gateway has removed it meanwhile.
        if found.st_uid != owner:
            foreign.append(path)
        if not stat.S_ISLNK(found.st_mode) and found.st_mode & _OTHERS:
            exposed.append(path)
    return foreign, exposed


def _inside(directory: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(directory):
        if Path(folder) == directory:
            folders[:] = [name for name in folders if name not in _NOT_OURS]
        yield from (Path(folder, name) for name in (*folders, *files))


def _some(paths: list[Path]) -> str:
    named = ", ".join(path.name for path in paths[:_NAMED])
    return f"{count(len(paths), 'file')} ({named}{', ...' if len(paths) > _NAMED else ''})"


def _close(paths: Iterable[Path]) -> None:
    for path in paths:
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~_OTHERS)
