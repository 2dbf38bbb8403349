"""Restores a backup: unpacks it next to the old files, verifies every byte, and then moves it into place."""

import contextlib
import errno
import hashlib
import os
import shutil
import sqlite3
import tarfile
import zlib
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import mkdtemp
from urllib.parse import quote

import msgspec

from config import StorageEngine, StorageSettings
from config.files import fsync_directory, make_private_directory
from gateway.backup.create import (
    CONFIG,
    FORMAT,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    SECRET_FILES,
    SPOOL,
    VERSION,
    Manifest,
    is_member_key,
    is_member_name,
    member_key,
)
from gateway.data_dir import RESTORE_STAGING
from gateway.errors import Refused
from gateway.private_files import CREATE, FILE_MODE, open_private
from gateway.spool import schema
from gateway.storage_copy.copy import copy_storage
from gateway.storage_copy.files import FileReader
from gateway.storage_copy.open import explained, open_copy_target
from gateway.text.plain import in_bytes

_BLOCK_BYTES = 1024 * 1024
_MAX_EXTENDED_HEADER_BYTES = 64 * 1024
"""An extended header holds a name that is longer than 100 bytes."""
_OWNER = 0o700
_KEPT = {"gatehouse.lock", "control.sock"}
"""Files that may be in an empty data directory, and stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """`set_aside` is the folder with the previous files."""

    manifest: Manifest
    set_aside: Path | None


class _Damaged(Exception):
    """The text is the reason, as the end of a sentence."""


def restore_backup(
    archive: Path, directory: Path, *, replaces: bool, now: datetime, storage: StorageSettings | None = None
) -> Restored:
    """Restore into a data directory that the caller has locked. Raises `Refused`, and changes nothing, if it cannot.

    With `replaces`, the present files are moved to a folder next to the directory. No file is deleted. If `storage` is
    a database, sessions and spool go there. It has to be empty, unless its file is in the data directory.
    """
    for interrupted in directory.glob(f"{RESTORE_STAGING}*"):
        if interrupted.is_symlink() or not interrupted.is_dir():
            interrupted.unlink()
        else:
            shutil.rmtree(interrupted)
    present = [path for path in directory.iterdir() if path.name not in _KEPT]
    if present and not replaces:
        raise Refused(
            f"{directory} is not empty. Restore into an empty data directory, "
            "or add --replace to move the current files aside."
        )
    staging = Path(mkdtemp(prefix=RESTORE_STAGING, dir=directory))
    set_aside = directory.parent / f"{directory.name}.before-restore-{now:%Y%m%dT%H%M%SZ}" if present else None
    if set_aside is not None and not os.access(directory.parent, os.W_OK):
        set_aside = directory / set_aside.name

    def move_into_place() -> None:
        # From here on, a crash leaves the staging folder, and `require_complete_restore` prevents a start.
        if set_aside is not None:
            set_aside.mkdir(mode=_OWNER)
            for path in present:
                path.rename(set_aside / path.name)
        for path in staging.iterdir():
            path.rename(directory / path.name)
        fsync_directory(directory)

    try:
        manifest = _unpack(archive, staging)
        if storage is None or storage.engine is StorageEngine.FILES:
            move_into_place()
        else:
            _restore_database(staging, directory, storage, manifest, move_into_place)
    except OSError as error:
        raise Refused(f"The restore failed: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return Restored(manifest=manifest, set_aside=set_aside)


def _restore_database(
    staging: Path, directory: Path, storage: StorageSettings, manifest: Manifest, move_into_place: Callable[[], None]
) -> None:
    """Copy sessions and spool to a database, and move the other files into place."""
    # An interrupted restore is continued by the next one with the same backup.
    identity = f"the backup of {manifest.taken_at} ({manifest.members[SPOOL].sha256[:12]})"

    def drop_copied_files() -> None:
        (staging / SPOOL).unlink()
        shutil.rmtree(staging / "sessions", ignore_errors=True)

    def finish() -> None:
        drop_copied_files()
        move_into_place()

    with explained(), ExitStack() as stack:
        reader = stack.enter_context(closing(FileReader(staging, identity)))
        if storage.engine is StorageEngine.SQLITE and storage.path.is_relative_to(directory):
            # Its file is made in the staging folder, and takes the way of all others.
            path = staging / storage.path.relative_to(directory)
            inside = storage.model_copy(update={"url": f"sqlite://{quote(str(path))}"})
            with open_copy_target(inside, staging) as target:
                copy_storage(reader, target)
            finish()
        else:
            target = stack.enter_context(open_copy_target(storage, directory))
            copy_storage(reader, target, before_finish=finish)


class _Header(tarfile.TarInfo):
    """A header of an archive, limited to the two types that a backup contains.

    `tarfile` expands sparse files, and reads extended headers of any length into memory.
    """

    def _proc_member(self, members: tarfile.TarFile) -> tarfile.TarInfo:
        """Check each header before `tarfile` reads on. Newer releases of Python never call `frombuf`."""
        is_extended = self.type == tarfile.XHDTYPE and 0 <= self.size <= _MAX_EXTENDED_HEADER_BYTES
        if not is_extended and (self.type != tarfile.REGTYPE or self.size < 0):
            raise _Damaged("it contains something other than files")
        return super()._proc_member(members)  # type: ignore[misc,no-any-return] # Its place for subclasses, but untyped.

    def _proc_gnusparse_10(self, *_arguments: object) -> None:
        """Replace the method of `tarfile` that reads a table of any length, before `issparse` can be asked."""
        raise _Damaged("it contains something other than files")


def _unpack(archive: Path, staging: Path) -> Manifest:
    """Unpack all members, and compare them with the manifest."""
    try:
        with archive.open("rb") as file:
            # The manifest is the last member. So the archive is read twice: nothing is written before it is known
            # which files there are, and how large they are.
            with tarfile.open(fileobj=file, mode="r|gz", tarinfo=_Header) as members:
                manifest = _read_manifest(members, shutil.disk_usage(staging).free)
            file.seek(0)
            with tarfile.open(fileobj=file, mode="r|gz", tarinfo=_Header) as members:
                _extract(members, manifest, staging)
        _check_spool(staging / SPOOL)
    # Headers, folders and JSON that are nested too deeply raise a `RecursionError`.
    except (_Damaged, tarfile.TarError, EOFError, zlib.error, ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, _Damaged) else "it is truncated or damaged"
        raise Refused(f"Can't restore {archive}: {reason}. Nothing was changed.") from error
    except OSError as error:
        # Everything else is a problem of the data directory, not of the archive. gzip's own errors have no errno.
        if error.filename == str(archive) or error.errno in {None, errno.ESPIPE}:
            reason = error.strerror or "it is not a gzip file"
            raise Refused(f"Can't read {archive}: {reason}. Nothing was changed.") from error
        raise
    return manifest


def _read_manifest(members: tarfile.TarFile, free: int) -> Manifest:
    """Read the archive up to its manifest. Raises `_Damaged` if it can't be restored within `free` bytes."""
    needed = 0
    for info in members:
        _require_file(info)
        if info.name == MANIFEST:
            source = members.extractfile(info)
            if source is None or info.size > MAX_MANIFEST_BYTES:
                raise _Damaged("its manifest is too long")
            return _decode_manifest(source.read())
        # A small compressed file may claim any size. This also limits how long we read.
        needed += tarfile.BLOCKSIZE + info.size
        if needed > free:
            raise _Damaged(f"it needs more than the {in_bytes(free)} that are free on this disk")
    raise _Damaged("its end is missing")


class _Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a manifest that every version has."""

    format: str = ""
    version: int


def _decode_manifest(data: bytes) -> Manifest:
    # Types let msgspec pass over everything unknown: as Python objects, it could take twenty times the memory.
    claimed = msgspec.json.decode(data, type=_Claim)
    if claimed.format != FORMAT:
        raise _Damaged("its manifest is not from Gatehouse")
    if claimed.version > VERSION:
        raise _Damaged(f"it was made by a newer Gatehouse (format {claimed.version}; this version supports {VERSION})")
    manifest = msgspec.json.decode(data, type=Manifest)
    if not all(map(is_member_key, manifest.members)):
        raise _Damaged("it contains a file that doesn't belong in a backup")
    if not manifest.has_secrets and not manifest.members.keys().isdisjoint({CONFIG, *SECRET_FILES}):
        raise _Damaged("it contains secrets, although its manifest says that it has none")
    return manifest


def _extract(members: tarfile.TarFile, manifest: Manifest, staging: Path) -> None:
    """Write the members of the manifest to `staging`. Raises `_Damaged` at the first difference."""
    missing = dict(manifest.members)
    for info in members:
        _require_file(info)
        if info.name == MANIFEST:
            break
        expected = missing.pop(member_key(info.name), None)
        source = members.extractfile(info)
        if source is None or expected is None or expected.size != info.size:
            raise _Damaged("its contents differ from its manifest")
        target = staging / info.name
        make_private_directory(target.parent)
        descriptor = open_private(target, CREATE)
        os.fchmod(descriptor, info.mode & _OWNER | FILE_MODE)
        digest = hashlib.sha256()
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor has no Path.
            while block := source.read(_BLOCK_BYTES):
                digest.update(block)
                file.write(block)
            file.flush()
            os.fsync(descriptor)
        if digest.hexdigest() != expected.sha256:
            raise _Damaged("its contents differ from its manifest")
    if missing:
        raise _Damaged("its contents differ from its manifest")


def _require_file(info: tarfile.TarInfo) -> None:
    """Raise `_Damaged` for a member whose extended header makes it sparse, or that doesn't belong in a backup."""
    if info.issparse() or info.size < 0:
        raise _Damaged("it contains something other than files")
    if info.name != MANIFEST and not is_member_name(info.name):
        raise _Damaged("it contains a file that doesn't belong in a backup")


def _check_spool(path: Path) -> None:
    if not path.exists():
        raise _Damaged("the spool is missing")
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            schema.version_of(connection)
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except schema.Newer as newer:
        raise _Damaged(f"its spool was written by a newer Gatehouse (format {newer})") from newer
    except (schema.NotOurs, sqlite3.Error) as error:
        raise _Damaged("its spool is damaged") from error
    if verdict != "ok":
        raise _Damaged("its spool is damaged")
    with contextlib.suppress(OSError):
        path.chmod(FILE_MODE)
