"""Restores a backup: unpacks it next to the old files, verifies every byte, and then moves it into place."""

import contextlib
import hashlib
import os
import shutil
import sqlite3
import tarfile
import zlib
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import mkdtemp

import msgspec

from config.files import fsync_directory, make_private_directory
from gateway.backup.create import FORMAT, MANIFEST, SPOOL, VERSION, Manifest, Member, is_member_name
from gateway.errors import CannotStart, Refused
from gateway.private_files import CREATE, FILE_MODE, open_private
from gateway.spool import schema

_BLOCK_BYTES = 1024 * 1024
_MAX_MANIFEST_BYTES = 1024 * 1024 * 1024
_OWNER = 0o700
_STAGING = ".restoring-"
_KEPT = {"gatehouse.lock", "control.sock"}
"""Files that may be in an empty data directory, and stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """`set_aside` is the folder with the previous files."""

    manifest: Manifest
    set_aside: Path | None


class _Damaged(Exception):
    """The text is the reason, as the end of a sentence."""


def require_complete_restore(directory: Path) -> None:
    """Raise `CannotStart` if a restore into `directory` was interrupted: it may contain only a part of the backup."""
    for staging in directory.glob(f"{_STAGING}*"):
        raise CannotStart(
            f"A restore into {directory} was interrupted. Run it again with --replace, "
            f"or delete {staging} to use the directory as it is."
        )


def restore_backup(archive: Path, directory: Path, *, replaces: bool, now: datetime) -> Restored:
    """Restore into a data directory that the caller has locked. Raises `Refused`, and changes nothing, if it cannot.

    With `replaces`, the present files are moved to a folder next to the directory. No file is deleted.
    """
    for interrupted in directory.glob(f"{_STAGING}*"):
        shutil.rmtree(interrupted)
    present = [path for path in directory.iterdir() if path.name not in _KEPT]
    if present and not replaces:
        raise Refused(
            f"{directory} is not empty. Restore into an empty data directory, "
            "or add --replace to move the current files aside."
        )
    staging = Path(mkdtemp(prefix=_STAGING, dir=directory))
    set_aside = None
    try:
        manifest = _unpack(archive, staging)
        # From here on, a crash leaves the staging folder, and `require_complete_restore` prevents a start.
        if present:
            set_aside = directory.parent / f"{directory.name}.before-restore-{now:%Y%m%dT%H%M%SZ}"
            if not os.access(directory.parent, os.W_OK):
                set_aside = directory / set_aside.name
            set_aside.mkdir(mode=_OWNER)
            for path in present:
                path.rename(set_aside / path.name)
        for path in staging.iterdir():
            path.rename(directory / path.name)
        fsync_directory(directory)
    except OSError as error:
        raise Refused(f"The restore failed: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return Restored(manifest=manifest, set_aside=set_aside)


def _unpack(archive: Path, staging: Path) -> Manifest:
    """Unpack all members, and compare them with the manifest."""
    try:
        with archive.open("rb") as file, tarfile.open(fileobj=file, mode="r|gz") as members:
            manifest = _extract(members, staging)
        _check_spool(staging / SPOOL)
    except (_Damaged, tarfile.TarError, EOFError, zlib.error, ValueError) as error:
        reason = str(error) if isinstance(error, _Damaged) else "it is truncated or damaged"
        raise Refused(f"Can't restore {archive}: {reason}. Nothing was changed.") from error
    except OSError as error:
        # Everything else is a problem of the data directory, not of the archive. gzip's own errors have no errno.
        if error.filename == str(archive) or error.errno is None:
            reason = error.strerror or "it is not a gzip file"
            raise Refused(f"Can't read {archive}: {reason}. Nothing was changed.") from error
        raise
    return manifest


def _extract(members: tarfile.TarFile, staging: Path) -> Manifest:
    """Write all members to `staging`. Raises `_Damaged` if they differ from the manifest."""
    written: dict[str, Member] = {}
    for info in members:
        source = members.extractfile(info) if info.isreg() else None
        if source is None:
            raise _Damaged("it contains something other than files")
        if info.name == MANIFEST and info.size <= _MAX_MANIFEST_BYTES:
            claimed = msgspec.json.decode(source.read())
            if not isinstance(claimed, dict) or claimed.get("format") != FORMAT:
                raise _Damaged("its manifest is not from Gatehouse")
            version = claimed.get("version")
            if not isinstance(version, int) or version > VERSION:
                raise _Damaged(f"it was made by a newer Gatehouse (format {version}; this version supports {VERSION})")
            manifest = msgspec.convert(claimed, Manifest)
            if manifest.members != written:
                raise _Damaged("its contents differ from its manifest")
            return manifest
        if not is_member_name(info.name) or info.name in written:
            raise _Damaged("it contains a file that doesn't belong in a backup")
        target = staging / info.name
        make_private_directory(target.parent)
        descriptor = open_private(target, CREATE)
        os.fchmod(descriptor, info.mode & _OWNER | FILE_MODE)
        digest, size = hashlib.sha256(), 0
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor has no Path.
            while block := source.read(_BLOCK_BYTES):
                digest.update(block)
                size += len(block)
                file.write(block)
            file.flush()
            os.fsync(descriptor)
        written[info.name] = Member(size, digest.hexdigest())
    raise _Damaged("its end is missing")


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
