"""A release of a copy of this tree, built without a network. The tests of each way to install share it."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from release.debian import PYTHONS
from release.sbom import EXTRAS
from tests.release.wheelhouse import closure, pack

ROOT = Path(__file__).parents[2]
TIMEOUT = 300
DEBIAN = {python: debian for debian, python in PYTHONS.items()}.get(
    f"{sys.version_info.major}.{sys.version_info.minor}"
)
"""The version of Debian that has the Python of this environment, whose packages go into the Debian package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """The files of a version, and the environment in which installers find the packages that it needs."""

    version: str
    repository: Path
    environment: dict[str, str]

    @property
    def folder(self) -> Path:
        return self.repository / "dist" / self.version

    def file(self, pattern: str) -> Path:
        (found,) = self.folder.glob(pattern)
        return found


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False)


def copy_of_the_tree(folder: Path) -> Path:
    """Copy the files that git knows, in their present state, into a new repository."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in listed.stdout.split("\0"):
        if name and (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    for words in (("init", "--quiet"), ("add", "--all"), ("commit", "--quiet", "--message", "Start")):
        assert run("git", *words, cwd=folder, env=git_environment()).returncode == 0
    return folder


def git_environment() -> dict[str, str]:
    names = {f"GIT_{who}_{what}": "ada@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return {**os.environ, **names, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


def make_release(repository: Path, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run what `make release` runs."""
    debian = ("--debian", *([DEBIAN] if DEBIAN else []))
    return run(sys.executable, "-m", "release", *debian, *words, cwd=repository, env=environment)


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Released:
    if shutil.which("git") is None or shutil.which("dpkg-deb") is None:
        pytest.skip("needs git and dpkg-deb")
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # All workers share one release: the first one makes it.
    folder = base / "release"
    folder.mkdir(exist_ok=True)
    wheels, repository = folder / "wheels", folder / "repository"
    environment = git_environment() | {
        "UV_OFFLINE": "1",
        "UV_FIND_LINKS": str(wheels),
        "UV_CACHE_DIR": str(folder / "uv-cache"),
        "UV_PYTHON_DOWNLOADS": "never",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "DPKG_DEB_COMPRESSOR_TYPE": "gzip",  # Quick. A real release keeps Debian's default.
        "DPKG_DEB_COMPRESSOR_LEVEL": "1",
    }
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            wheels.mkdir()
            for package in closure(needed_packages()).values():
                pack(package, wheels)
            copy_of_the_tree(repository)
            made = make_release(repository, environment)
            assert made.returncode == 0, made.stderr
            (folder / "complete").touch()
    version = re.search(r'__version__ = "(.*)"', (repository / "gateway/__init__.py").read_text())
    assert version is not None
    return Released(version=version[1], repository=repository, environment=environment)


def needed_packages() -> list[str]:
    """Return what Gatehouse needs with all extras, and what a release needs besides."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *(each for extra in EXTRAS for each in extras[extra]), "pip", "hatchling"]
