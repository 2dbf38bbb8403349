"""Loads the settings for a command, from the file that the command line, the environment or custom points to."""

import os
from pathlib import Path

from config import Loaded, find, load

__all__ = ["load_settings"]


def load_settings(config: Path | None, *, resolves: bool = True) -> Loaded:
    """Raise `ConfigError` with every mistake at once. With `resolves` false, secrets are taken on trust."""
    return load(find(config, os.environ, Path.cwd(), Path.home()), os.environ, resolves=resolves)
