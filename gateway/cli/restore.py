"""`gatehouse restore`: a backup becomes the data directory, once all of it was found sound."""

import argparse
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from config import ConfigError
from gateway.backup import Restored, restore
from gateway.backup.layout import CONFIG
from gateway.cli.asking import parser
from gateway.cli.exits import EXIT_CONFIG, EXIT_FAILED, EXIT_OK, complain
from gateway.cli.settings import load_settings
from gateway.errors import CannotStart, Refused
from gateway.lock import DataDirLock, prepare_data_dir
from gateway.text import printable
from gateway.text.phrases import count

__all__ = ["main"]


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    options = _options(arguments, config)
    os.umask(0o077)
    try:
        directory = load_settings(options.config, resolves=False).settings.gateway.data_dir
        prepare_data_dir(directory)
        with DataDirLock(directory):
            restored = restore(options.file, directory, replaces=options.replace, now=datetime.now(UTC))
    except (ConfigError, CannotStart) as refusal:
        return complain(refusal, EXIT_CONFIG)
    except Refused as refusal:
        return complain(refusal, EXIT_FAILED)
    print(_told(restored, directory))
    return EXIT_OK


def _options(arguments: Sequence[str], config: Path | None) -> argparse.Namespace:
    made = parser("restore", "Put a backup into the data directory; the gateway must not run.", config)
    made.add_argument("file", type=Path, metavar="FILE", help="what `gatehouse backup` has written")
    made.add_argument("--replace", action="store_true", help="move aside what is in the data directory")
    return made.parse_args(arguments)


def _told(restored: Restored, directory: Path) -> str:
    manifest = restored.manifest
    sessions, when = count(manifest.transcripts(), "session"), printable(manifest.taken_at)
    lines = [f"Restored {sessions} into {printable(str(directory))}, as they were at {when}."]
    if restored.set_aside:
        lines.append(f"What was there before is in {printable(str(restored.set_aside))}.")
    if CONFIG in manifest.members:
        lines.append(f"The configuration of then is in {printable(str(directory / CONFIG))}; put it where you need it.")
    if manifest.skipped:
        names = ", ".join(printable(name) for name in manifest.skipped[:5])
        lines.append(f"The backup lacks {count(len(manifest.skipped), 'file')} that could not be taken: {names}.")
    return "\n".join(lines)
