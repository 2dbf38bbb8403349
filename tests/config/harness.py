"""Shared by the config tests."""

from pathlib import Path

import pytest

from config import ConfigError, Problem, load

CANARY = "canary-5f1c9e7a-never-to-be-seen"
"""A secret that no output may contain."""


def write_config(folder: Path, text: str) -> Path:
    """Write a config file with mode 0600, under any umask."""
    path = folder / "gatehouse.toml"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return path


def problems_of(path: Path, environ: dict[str, str] | None = None) -> dict[str, Problem]:
    """Load a file that must be rejected, and return its problems by key."""
    with pytest.raises(ConfigError) as caught:
        load(path, environ or {})
    assert str(path) in str(caught.value)
    return {problem.key: problem for problem in caught.value.problems}
