"""Runs the programs that a release needs."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from gateway.errors import Refused

UV = str(Path(sys.executable).with_name("uv"))


def run(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Return what the program prints. Raises `Refused` with its errors if it fails or is missing."""
    name = Path(command[0]).name
    if shutil.which(command[0]) is None:
        raise Refused(f"`{name}` is not installed, and a release needs it.")
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Refused(f"`{name} {command[1]}` failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout
