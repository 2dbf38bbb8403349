"""Putting a backup back: unpacked beside the old files, checked to the last byte, and only then moved in place."""

import contextlib
import hashlib
import os
import shutil
import sqlite3
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import mkdtemp
from typing import IO

import msgspec

from config.files import fsync_directory, make_private_directory
from gateway.backup.layout import FORMAT, MANIFEST, SPOOL, VERSION, Manifest, Member, is_a_place
from gateway.errors import CannotStart, Refused
from gateway.spool import schema

__all__ = ["Restored", "insist_on_whole", "restore"]

_BLOCK = 1024 * 1024
_MANIFEST_LIMIT = 1024 * 1024 * 1024
_OWNER = 0o700
_PRIVATE = 0o600
_STAGING = ".restoring-"
_NEVER_IN_THE_WAY = {"gatehouse.lock", "control.sock"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """`set_aside` is where the files went that were there before."""

    manifest: Manifest
    set_aside: Path | None


class _Unsound(Exception):
    """What is wrong with an archive, as the end of a sentence."""


def insist_on_whole(directory: Path) -> None:
    """Refuse a data directory in which a restore was cut: a part of the backup may be in place, and the rest not."""
    for half in directory.glob(f"{_STAGING}*"):
        raise CannotStart(
            f"A restore into {directory} was cut short. Run it again with --replace, "
            f"or delete {half} to go on with what is there."
        )


def restore(archive: Path, directory: Path, *, replaces: bool, now: datetime) -> Restored:
    """Restore into a data directory that is locked by the caller; `Refused` with nothing changed when that cannot be.

    With `replaces`, what is there is moved to a folder beside it; nothing is deleted.
    """
    for leftover in directory.glob(f"{_STAGING}*"):  # Of a restore that was cut.
        shutil.rmtree(leftover)
    in_the_way = [path for path in directory.iterdir() if path.name not in _NEVER_IN_THE_WAY]
    if in_the_way and not replaces:
        raise Refused(
            f"{directory} is not empty. Restore into an empty data directory, "
            "or add --replace: what is there is then moved aside."
        )
    staging = Path(mkdtemp(prefix=_STAGING, dir=directory))
    try:
        manifest = _unpacked(archive, staging)
        set_aside = _set_aside(directory, in_the_way, now)
        for path in staging.iterdir():
            path.rename(directory / path.name)
        fsync_directory(directory)
    except OSError as trouble:
        raise Refused(f"The backup could not be restored: {trouble.strerror or trouble}.") from trouble
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return Restored(manifest=manifest, set_aside=set_aside)


def _set_aside(directory: Path, paths: list[Path], now: datetime) -> Path | None:
    if not paths:
        return None
    target = directory.parent / f"{directory.name}.before-restore-{now:%Y%m%dT%H%M%SZ}"
    target = target if os.access(directory.parent, os.W_OK) else directory / target.name
    target.mkdir(mode=_OWNER)
    for path in paths:
        path.rename(target / path.name)
    return target


def _unpacked(archive: Path, staging: Path) -> Manifest:
    """Unpack all members, and hold them against the manifest."""
    try:
        with archive.open("rb") as file, tarfile.open(fileobj=file, mode="r|gz") as members:
            found, written = _extract(members, staging)
        manifest = _checked(found, written)
        _check_spool(staging / SPOOL)
    except (_Unsound, tarfile.TarError, EOFError, zlib.error, ValueError) as trouble:
        reason = str(trouble) if isinstance(trouble, _Unsound) else "it is cut off or damaged"
        raise Refused(f"{archive} is not a backup that can be restored: {reason}. Nothing was changed.") from trouble
    except OSError as trouble:
        if trouble.filename == str(archive) or trouble.errno is None:
            reason = trouble.strerror or "it is no gzip file"
            raise Refused(f"{archive} cannot be read: {reason}. Nothing was changed.") from trouble
        raise
    return manifest


def _extract(members: tarfile.TarFile, staging: Path) -> tuple[bytes, dict[str, Member]]:
    """Write each member to its place; return the manifest as it is, and what was written."""
    written: dict[str, Member] = {}
    for info in members:
        source = members.extractfile(info) if info.isreg() else None
        if source is None:
            raise _Unsound("it holds something that is no file")
        if info.name == MANIFEST and info.size <= _MANIFEST_LIMIT:
            return source.read(), written
        if not is_a_place(info.name) or info.name in written:
            raise _Unsound("it holds a file that belongs nowhere")
        target = staging / info.name
        make_private_directory(target.parent)
        written[info.name] = _write(target, _blocks(source), info.mode & _OWNER | _PRIVATE)
    raise _Unsound("its end is missing")


def _blocks(source: IO[bytes]) -> Iterator[bytes]:
    while block := source.read(_BLOCK):
        yield block


def _write(target: Path, blocks: Iterator[bytes], mode: int) -> Member:
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    digest = hashlib.sha256()
    size = 0
    with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor has no Path.
        for block in blocks:
            digest.update(block)
            size += len(block)
            file.write(block)
        file.flush()
        os.fsync(descriptor)
    return Member(size, digest.hexdigest())


def _checked(found: bytes, written: dict[str, Member]) -> Manifest:
    claimed = msgspec.json.decode(found)
    if not isinstance(claimed, dict) or claimed.get("format") != FORMAT:
        raise _Unsound("its manifest is none of ours")
    version = claimed.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise _Unsound(f"a newer Gatehouse has made it (format {version}, this one knows {VERSION})")
    manifest = msgspec.convert(claimed, Manifest)
    if manifest.members != written:
        raise _Unsound("what it holds is not what its manifest says")
    return manifest


def _check_spool(path: Path) -> None:
    if not path.exists():
        raise _Unsound("the spool is missing")
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            schema.version_of(connection)
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except schema.Newer as newer:
        raise _Unsound(f"its spool was written by a newer Gatehouse (format {newer})") from newer
    except (schema.NotOurs, sqlite3.Error) as trouble:
        raise _Unsound("its spool is damaged") from trouble
    if verdict != "ok":
        raise _Unsound("its spool is damaged")
    with contextlib.suppress(OSError):
        path.chmod(_PRIVATE)
